// Files and vector stores: upload, index, search, delete.

import { getJson, send, upload } from "./lib/api.js";
import { askForKey, confirmed, openModal } from "./lib/dialog.js";
import { announce, button, byId, copyButton, h, icon } from "./lib/dom.js";
import { bytes, card, dataTable } from "./lib/tables.js";
import { count, many, plain, when } from "./lib/text.js";

const EVERY = 1500; // ms between two looks while files are indexed
const PAGE = 100;
const STATES = { completed: "ready", in_progress: "working", failed: "failed", cancelled: "cancelled" };

export class Files {
  constructor() {
    byId("files-upload").addEventListener("click", () => byId("files-input").click());
    byId("files-input").addEventListener("change", ({ target }) => {
      this.#upload([...target.files]);
      target.value = "";
    });
    byId("store-new").addEventListener("click", () => this.#create());
    const view = byId("files");
    view.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      byId("files-body").classList.add("dropping-here");
    });
    view.addEventListener("dragleave", () => byId("files-body").classList.remove("dropping-here"));
    view.addEventListener("drop", (event) => {
      event.preventDefault();
      byId("files-body").classList.remove("dropping-here");
      this.#upload([...event.dataTransfer.files]);
    });
  }

  found = null; // the results of the last search
  names = null; // filenames by id

  async show(id) {
    const moved = this.visible && this.id !== id;
    if (this.id !== id) byId("files-body").replaceChildren();
    this.visible = true;
    this.id = id;
    this.results = null;
    await this.#refresh();
    if (moved) byId("files-title").focus({ preventScroll: true });
  }

  hide() {
    this.visible = false;
    clearTimeout(this.timer);
  }

  reset() {
    byId("files-body").replaceChildren();
  }

  async #refresh() {
    clearTimeout(this.timer);
    const { id } = this;
    const place = byId("files-body");
    try {
      const [nodes, busy, title] = id ? await this.#store(id) : await this.#all();
      if (!this.visible || this.id !== id) return;
      byId("files-title").textContent = title;
      byId("store-new").hidden = Boolean(id);
      for (const button of ["files-upload", "store-new"]) byId(button).disabled = false;
      const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("data-focus") : null;
      const query = byId("store-query")?.value;
      place.replaceChildren(...nodes);
      if (query && byId("store-query")) byId("store-query").value = query;
      if (focused) place.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
      if (busy) this.timer = setTimeout(() => this.#refresh(), EVERY);
    } catch (error) {
      if (!this.visible || this.id !== id) return;
      askForKey(error);
      const absent = error.code === "unknown_url";
      byId("files-title").textContent = "Files";
      if (absent) for (const button of ["files-upload", "store-new"]) byId(button).disabled = true;
      place.replaceChildren(
        absent
          ? h(
              "p",
              { class: "note" },
              "Files are not enabled on this server. To enable them, add ",
              h("code", {}, "[tools.file_search]"),
              " to its settings.",
            )
          : h(
              "div",
              { class: "failure", role: "alert" },
              plain(error.message),
              id ? h("p", {}, h("a", { href: "#/files" }, "All files")) : null,
            ),
      );
    }
  }

  async #all() {
    const [stores, files] = await Promise.all([getJson(`vector_stores?limit=${PAGE}`), getJson(`files?limit=${PAGE}`)]);
    return [
      [
        card(
          "Vector stores",
          h("p", { class: "note" }, "A model can search the files of a vector store with the file_search tool."),
          dataTable(
            "Vector stores",
            [["Name"], ["State"], ["Files", true], ["Size", true], ["Last used"], ["", true]],
            stores.data.map((store) => [
              h(
                "a",
                { href: `#/files/${encodeURIComponent(store.id)}`, "data-focus": `open-${store.id}` },
                plain(store.name || store.id),
              ),
              storeState(store),
              count(store.file_counts.total),
              bytes(store.usage_bytes),
              when(store.last_active_at),
              this.#remove(`vector_stores/${store.id}`, store.name || store.id, {
                title: "Delete this vector store?",
                text: "Its files are kept and can be added to another vector store.",
                verb: "Delete",
              }),
            ]),
            { empty: "No vector stores yet." },
          ),
          more(stores),
        ),
        card(
          "Files",
          dataTable(
            "Uploaded files",
            [["Name"], ["Id"], ["Size", true], ["Purpose"], ["Uploaded"], ["", true]],
            files.data.map((file) => [
              plain(file.filename),
              h(
                "span",
                { class: "toolbar" },
                h("code", { title: file.id }, short(file.id)),
                copyButton(file.id, "Id", ""),
              ),
              bytes(file.bytes),
              file.purpose.replaceAll("_", " "),
              when(file.created_at),
              this.#remove(`files/${file.id}`, file.filename, {
                title: "Delete this file?",
                text: "The file is also removed from all vector stores.",
                verb: "Delete",
              }),
            ]),
            { empty: "No files yet. Upload a file or drop it here." },
          ),
          more(files),
        ),
      ],
      stores.data.some(({ file_counts }) => file_counts.in_progress),
      "Files",
    ];
  }

  async #store(id) {
    const path = `vector_stores/${encodeURIComponent(id)}`;
    const [store, files] = await Promise.all([getJson(path), getJson(`${path}/files?limit=${PAGE}`)]);
    if (!this.visible || this.id !== id) return []; // the key may have changed
    const names = await this.#names(files.data);
    const form = h(
      "form",
      { id: "store-search", role: "search", on: { submit: (event) => this.#search(event, path) } },
      h("label", { for: "store-query", class: "visually-hidden" }, "Search in this vector store"),
      h(
        "div",
        { class: "toolbar" },
        h(
          "div",
          { class: "search spring" },
          icon("search"),
          h("input", {
            id: "store-query",
            type: "search",
            placeholder: "Try a search query…",
            autocomplete: "off",
            "data-focus": "query",
          }),
        ),
        h("button", { class: "primary", "data-focus": "search" }, "Search"),
      ),
    );
    this.found ??= h("div", { id: "store-found", "aria-live": "polite" });
    if (this.results !== id) this.found.replaceChildren();
    this.results = id;
    return [
      [
        h("p", {}, h("a", { href: "#/files", "data-focus": "back" }, icon("arrow-left"), " All files")),
        h(
          "div",
          { class: "toolbar" },
          storeState(store),
          h("span", { class: "note" }, `${many(store.file_counts.total, "file")}, ${bytes(store.usage_bytes)}`),
          h("code", {}, store.id),
          copyButton(store.id, "Id", ""),
        ),
        card("Search", form, this.found),
        card(
          "Files",
          dataTable(
            "Files of this vector store",
            [["Name"], ["State"], ["Indexed", true], ["Added"], ["", true]],
            files.data.map((file) => [
              plain(names.get(file.id) ?? file.id),
              h(
                "span",
                {},
                h(
                  "span",
                  { class: `chip ${STATES[file.status] ?? ""}` },
                  file.status === "in_progress" ? "indexing" : file.status,
                ),
                file.last_error ? h("span", { class: "problem" }, ` ${plain(file.last_error.message)}`) : null,
              ),
              bytes(file.usage_bytes),
              when(file.created_at),
              this.#remove(`${path}/files/${file.id}`, names.get(file.id) ?? file.id, {
                title: "Remove this file from the vector store?",
                text: "The file itself is kept.",
                verb: "Remove",
              }),
            ]),
            { empty: "No files yet. Upload a file or drop it here." },
          ),
          more(files),
        ),
      ],
      store.file_counts.in_progress > 0,
      plain(store.name || store.id),
    ];
  }

  // The names of files, which their entries in vector stores lack.
  async #names(entries) {
    this.names ??= new Map();
    await Promise.all(
      entries
        .filter(({ id }) => !this.names.has(id))
        .map(async ({ id }) => {
          const file = await getJson(`files/${id}`).catch(() => null);
          if (file) this.names.set(id, file.filename);
        }),
    );
    return this.names;
  }

  #remove(path, name, question) {
    return button(
      icon("trash-2"),
      async () => {
        if (!(await confirmed(question))) return;
        try {
          await send("DELETE", path);
          announce(`${question.verb}d: ${plain(name)}.`);
        } catch (error) {
          announce(error.message);
        }
        await this.#refresh();
      },
      { class: "quiet only", "aria-label": `${question.verb} ${plain(name)}`, "data-focus": path },
    );
  }

  async #search(event, path) {
    event.preventDefault();
    const query = byId("store-query").value.trim();
    if (!query) return;
    try {
      const { data } = await send("POST", `${path}/search`, { query, max_num_results: 10 });
      this.found.replaceChildren(
        h(
          "p",
          { class: "note" },
          data.length
            ? data.length === 1
              ? "1 passage."
              : `${many(data.length, "passage")}, best first.`
            : "No passages found.",
        ),
        h(
          "ol",
          { class: "results" },
          data.map((result) =>
            h(
              "li",
              { class: "result" },
              h(
                "div",
                { class: "result-head" },
                h("strong", {}, plain(result.filename)),
                h("span", { class: "chip" }, `score ${result.score.toFixed(3)}`),
              ),
              result.content.map(({ text }) => h("p", { dir: "auto" }, plain(text))),
            ),
          ),
        ),
      );
    } catch (error) {
      this.found.replaceChildren(h("p", { class: "failure" }, plain(error.message)));
    }
  }

  async #create() {
    const name = h("input", { id: "store-name", name: "name", autocomplete: "off", maxlength: 256, autofocus: true });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "store-dialog-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "store-dialog-title" }, "New vector store"),
        h("div", { class: "field" }, h("label", { for: "store-name" }, "Name"), name),
        h(
          "div",
          { class: "buttons" },
          h("button", { value: "", type: "button", on: { click: () => dialog.close("") } }, "Cancel"),
          h("button", { value: "create", class: "primary" }, "Create"),
        ),
      ),
    );
    dialog.addEventListener("close", async () => {
      if (dialog.returnValue !== "create") return;
      try {
        const store = await send("POST", "vector_stores", name.value.trim() ? { name: name.value.trim() } : {});
        announce("Created.");
        location.hash = `#/files/${store.id}`;
      } catch (error) {
        announce(error.message);
      }
    });
    openModal(dialog);
  }

  // Upload files one after the other, into the vector store that is shown, if one is.
  async #upload(files) {
    const store = this.id;
    for (const file of files) {
      const bar = h("progress", { max: 1, "aria-label": `Upload of ${plain(file.name)}` });
      const state = h("span", {}, "0%");
      const abort = new AbortController();
      const stop = button("Stop", () => abort.abort(), {
        class: "quiet",
        "aria-label": `Stop the upload of ${plain(file.name)}`,
      });
      const entry = h(
        "li",
        {},
        h("span", {}, plain(file.name), " ", h("span", { class: "note" }, bytes(file.size))),
        h("span", { class: "toolbar" }, state, stop),
        bar,
      );
      byId("uploads").append(entry);
      try {
        const made = await upload(
          file,
          (share) => {
            bar.value = share;
            state.textContent = `${Math.round(share * 100)}%`;
          },
          abort.signal,
        );
        if (store) await send("POST", `vector_stores/${encodeURIComponent(store)}/files`, { file_id: made.id });
        announce(`${plain(file.name)} uploaded.`);
        entry.remove();
      } catch (error) {
        bar.remove();
        state.replaceWith(h("span", { class: "problem", role: "alert" }, plain(error.message)));
        stop.replaceWith(
          button("Dismiss", () => entry.remove(), { class: "quiet", "aria-label": `Dismiss ${plain(file.name)}` }),
        );
      }
      if (this.visible) await this.#refresh();
    }
  }
}

const short = (id) => (id.length > 18 ? `${id.slice(0, 12)}…${id.slice(-4)}` : id);
const more = ({ has_more }) => (has_more ? h("p", { class: "note" }, `Showing the newest ${PAGE}.`) : null);

function storeState({ status, file_counts }) {
  if (file_counts.in_progress)
    return h("span", { class: "chip working" }, `indexing ${count(file_counts.in_progress)}`);
  if (file_counts.failed) return h("span", { class: "chip failed" }, `${count(file_counts.failed)} failed`);
  return h(
    "span",
    { class: `chip ${status === "expired" ? "cancelled" : "ready"}` },
    status === "expired" ? "expired" : "ready",
  );
}
