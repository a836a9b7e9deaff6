// The controls of the server's hosted tools: a switch each, and what can be chosen within a tool.

import { ApiError, getJson, key, send, upload } from "../lib/api.js";
import { asked } from "../lib/dialog.js";
import { announce, byId, h, icon } from "../lib/dom.js";
import { count, many, plain } from "../lib/text.js";
import { toolName, toolTitle } from "../talk/options.js";

const ICONS = {
  web_search: "globe",
  file_search: "file-search",
  code_interpreter: "code",
  shell: "terminal",
  image_generation: "image",
  mcp: "plug",
};
const POLL = 700; // ms between two looks at a file that is being indexed

export class Toolbox {
  constructor({ onchange }) {
    this.onchange = onchange;
    this.tools = []; // one for each that the server offers
    this.place = byId("hosted");
  }

  offer(about) {
    const declared = about.tools.map((declaration) =>
      declaration.type === "mcp"
        ? new ServerChoice(declaration, this.onchange)
        : new ToolChoice(declaration, this.onchange),
    );
    this.tools = [...(about.file_search ? [new StoreChoice(this.onchange)] : []), ...declared];
    this.place.replaceChildren(...this.tools.map(({ node }) => node));
  }

  // What is switched on, by the name of the tool.
  state() {
    return Object.fromEntries(this.#on().map((tool) => [tool.name, tool.state()]));
  }

  restore(state) {
    for (const tool of this.tools) tool.restore(state[tool.name] ?? null);
  }

  #on() {
    return this.tools.filter(({ box }) => box.checked);
  }
}

// A tool that is on or off.
class ToolChoice {
  constructor(declaration, onchange) {
    this.declared = declaration;
    this.name = toolName(declaration);
    this.onchange = onchange;
    this.title = plain(toolTitle(declaration));
    const id = `tool-${this.name}`;
    this.box = h("input", { type: "checkbox", role: "switch", id, on: { change: () => this.switched() } });
    this.more = h("div", { class: "tool-more", hidden: true });
    this.node = h(
      "div",
      { class: "tool" },
      h(
        "div",
        { class: "tool-head" },
        icon(ICONS[declaration.type] ?? "wrench"),
        h("label", { for: id }, this.title),
        this.box,
      ),
      this.more,
    );
  }

  switched() {
    this.more.hidden = !this.box.checked || !this.more.hasChildNodes();
  }

  state() {
    return {};
  }

  restore(state) {
    this.box.checked = state !== null;
    this.switched();
  }
}

// An MCP server, and which of its tools the model may call.
class ServerChoice extends ToolChoice {
  constructor(declaration, onchange) {
    super(declaration, onchange);
    this.allowed = null; // names; null for all
    this.listed = null;
    this.list = h("div", { class: "tool-list" });
    this.more.append(
      h(
        "details",
        { on: { toggle: ({ target }) => target.open && this.#load() } },
        h("summary", {}, "Tools"),
        this.list,
      ),
    );
  }

  async #load() {
    if (this.listed) return;
    this.list.replaceChildren(h("p", { class: "note pulse" }, "Listing the tools…"));
    try {
      const { tools, error } = await getJson(`antiphon/mcp/${encodeURIComponent(this.declared.server_label)}`);
      if (error) throw new ApiError(error);
      this.listed = tools;
      this.list.replaceChildren(...tools.map((tool) => this.#row(tool)));
    } catch (error) {
      this.list.replaceChildren(h("p", { class: "problem" }, plain(error.message)));
    }
  }

  #row(tool) {
    const box = h("input", {
      type: "checkbox",
      value: tool.name,
      checked: !this.allowed || this.allowed.includes(tool.name),
      on: { change: () => this.#choose() },
    });
    return h(
      "label",
      { class: "check" },
      box,
      h(
        "span",
        {},
        h("code", {}, plain(tool.name)),
        tool.needs_approval ? h("span", { class: "chip" }, "needs approval") : null,
        tool.description ? h("span", { class: "note" }, plain(tool.description)) : null,
      ),
    );
  }

  #choose() {
    const boxes = [...this.list.querySelectorAll("input")];
    const chosen = boxes.filter(({ checked }) => checked).map(({ value }) => value);
    this.allowed = chosen.length === boxes.length ? null : chosen;
  }

  state() {
    return this.allowed ? { allowed: this.allowed } : {};
  }

  restore(state) {
    super.restore(state);
    this.allowed = state?.allowed ?? null;
    for (const box of this.list.querySelectorAll("input"))
      box.checked = !this.allowed || this.allowed.includes(box.value);
  }
}

// File search, in a vector store that is chosen or made, and into which files are uploaded.
class StoreChoice extends ToolChoice {
  constructor(onchange) {
    super({ type: "file_search" }, onchange);
    this.stores = null;
    this.wanted = "";
    this.select = h("select", { id: "vector-store", on: { change: () => (this.wanted = this.select.value) } });
    this.files = h("ul", { class: "upload-list", "aria-label": "Uploads" });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.field = h("input", {
      type: "file",
      multiple: true,
      hidden: true,
      "aria-label": "Files for the vector store",
      on: { change: () => this.#upload() },
    });
    this.more.append(
      h("div", { class: "field" }, h("label", { for: "vector-store" }, "Vector store"), this.select),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "quiet", on: { click: () => this.#make() } }, icon("plus"), "New store"),
        h(
          "button",
          { type: "button", class: "quiet", on: { click: () => this.field.click() } },
          icon("upload"),
          "Upload files",
        ),
      ),
      this.field,
      this.files,
      this.problem,
    );
  }

  switched() {
    super.switched();
    if (this.box.checked && !this.stores) this.#load();
  }

  async #load(chosen = this.wanted) {
    try {
      this.stores = (await getJson("vector_stores?limit=100")).data;
      this.problem.textContent = "";
      this.select.replaceChildren(
        ...(this.stores.length ? [] : [h("option", { value: "" }, "No vector stores yet")]),
        ...this.stores.map((store) =>
          h(
            "option",
            { value: store.id },
            plain(`${store.name || store.id} (${many(store.file_counts.total, "file")})`),
          ),
        ),
      );
      if (this.stores.some(({ id }) => id === chosen)) this.select.value = chosen;
      this.wanted = this.select.value;
      this.onchange();
    } catch (error) {
      this.problem.textContent = error.message;
    }
  }

  async #make() {
    const name = await asked({ title: "New vector store", label: "Name of the store", verb: "Create" });
    if (!name) return null;
    try {
      const { id } = await send("POST", "vector_stores", { name });
      await this.#load(id);
      announce(`Created ${name}.`);
      return id;
    } catch (error) {
      this.problem.textContent = error.message;
      return null;
    }
  }

  async #upload() {
    const files = [...this.field.files];
    this.field.value = "";
    const store = this.select.value || (await this.#make());
    if (!store) return;
    await Promise.all(files.map((file) => this.#uploadOne(store, file)));
    await this.#load(store);
  }

  async #uploadOne(store, file) {
    const state = h("span", { class: "chip working" }, "uploading");
    this.files.append(h("li", {}, h("span", {}, plain(file.name)), state));
    const show = (text, kind) => {
      state.textContent = text;
      state.className = `chip ${kind}`;
    };
    try {
      const uploaded = await upload(file, (part) => show(`${count(Math.floor(100 * part))} %`, "working"));
      let entry = await send("POST", `vector_stores/${store}/files`, { file_id: uploaded.id });
      const owner = key.get();
      while (entry.status === "in_progress") {
        show("indexing", "working");
        await new Promise((done) => setTimeout(done, POLL));
        if (key.get() !== owner) return;
        entry = await getJson(`vector_stores/${store}/files/${uploaded.id}`);
      }
      show(entry.status === "completed" ? "ready" : plain(entry.last_error?.message ?? entry.status), entry.status);
      announce(`${file.name}: ${entry.status === "completed" ? "ready" : "failed"}.`);
    } catch (error) {
      show("failed", "failed");
      this.problem.textContent = `${file.name}: ${error.message}`;
    }
  }

  state() {
    const store = this.stores?.find(({ id }) => id === this.wanted);
    return { store: this.wanted, title: store?.name || this.wanted };
  }

  restore(state) {
    this.wanted = state?.store ?? this.wanted;
    super.restore(state);
    if (this.stores?.some(({ id }) => id === this.wanted)) this.select.value = this.wanted;
  }
}
