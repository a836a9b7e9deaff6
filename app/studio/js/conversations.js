// The list of the key's conversations: search, open, rename, pin, export, delete.

import { getJson, send } from "./lib/api.js";
import { asked, confirmed } from "./lib/dialog.js";
import { announce, byId, h } from "./lib/dom.js";
import { keyed } from "./lib/keyed.js";
import { popupButton } from "./lib/popup.js";
import { saveText } from "./lib/save.js";
import { ago, cut, plain } from "./lib/text.js";
import { Watch } from "./lib/watch.js";
import { asJson, asMarkdown, fileName } from "./talk/export.js";
import { chainOf, grouped } from "./talk/listing.js";
import { CLIENT } from "./talk/options.js";

const PAGE = 30;
const EVERY = 10_000; // ms between refreshes
const MINE = "antiphon.mine"; // localStorage: list only the studio's conversations
const STATES = { queued: ["running", "working"], in_progress: ["running", "working"], failed: ["failed", "failed"] };

export class Conversations {
  /**
   * Callbacks: `ondelete(chain)`, `onrename()`, and `onlist(entries)` after each refresh. `locals()` returns threads that
   * the server does not store.
   */
  constructor({ ondelete, onrename, onlist, locals }) {
    this.onlist = onlist;
    this.ondelete = ondelete;
    this.onrename = onrename;
    this.locals = locals;
    this.entries = [];
    this.current = ""; // address of the open conversation
    this.failure = ""; // error message of the last refresh
    this.asked = 0;
    this.rows = new Map(); // row objects by their content
    this.shown = new WeakMap(); // the entry of each element
    this.list = byId("conversation-list");
    this.field = byId("conversation-search");
    this.watch = new Watch(() => this.#refresh(), EVERY);
    this.field.addEventListener("input", () => this.#read());
    this.list.addEventListener("keydown", (event) => this.#move(event));
    byId("conversations-more").addEventListener("click", () => this.#more());
    const mine = byId("conversations-mine");
    mine.checked = localStorage.getItem(MINE) !== null;
    byId("conversations-all").checked = !mine.checked;
    byId("conversations-whose").addEventListener("change", () => {
      if (mine.checked) localStorage.setItem(MINE, "true");
      else localStorage.removeItem(MINE);
      this.#read();
    });
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  show() {
    byId("conversations").hidden = false;
    this.watch.start();
  }

  hide() {
    byId("conversations").hidden = true;
    this.watch.stop();
  }

  reset() {
    this.entries = [];
    this.field.value = "";
    this.more = false;
    this.draw();
  }

  /** A conversation's custom name, if it is listed and has one. */
  nameOf(address) {
    return address ? this.entries.find(({ id }) => chainOf(id) === chainOf(address))?.name : null;
  }

  /** The newest response of the listed conversation that a response belongs to, or the response itself. */
  newestOf(id) {
    return this.entries.find((entry) => chainOf(entry.id) === chainOf(id))?.id ?? id;
  }

  /** Highlight the open conversation. */
  mark(address) {
    this.current = address;
    this.draw();
  }

  refresh() {
    return this.watch.again();
  }

  // Reload as many entries as are displayed.
  #refresh() {
    return this.#read(Math.min(100, Math.max(PAGE, this.entries.length)), true);
  }

  #page(limit, after) {
    const mine = byId("conversations-mine").checked;
    const filters = Object.entries(mine ? CLIENT : {}).map(([name, value]) => [`metadata[${name}]`, value]);
    const query = new URLSearchParams([["limit", limit], ["text", this.field.value.trim()], ...filters]);
    if (after) query.set("after", after);
    return getJson(`antiphon/chains?${query}`);
  }

  async #read(limit = PAGE, quietly = false) {
    this.asked += 1;
    const { asked } = this;
    try {
      const page = await this.#page(limit);
      if (asked !== this.asked) return;
      const known = new Set(page.data.map(({ id }) => chainOf(id)));
      const rest = quietly ? this.entries.slice(limit).filter(({ id }) => !known.has(chainOf(id))) : [];
      this.entries = [...page.data, ...rest];
      this.more = page.has_more;
      this.failure = "";
      this.draw();
      this.onlist(this.entries);
      if (!quietly) announce(`${page.data.length}${page.has_more ? " or more" : ""} conversations.`);
    } catch (error) {
      if (asked !== this.asked) return;
      this.failure = error.message;
      this.draw();
      if (!quietly) announce(error.message);
    }
  }

  async #more() {
    this.asked += 1;
    const { asked } = this;
    try {
      const page = await this.#page(PAGE, this.entries.at(-1).id);
      if (asked !== this.asked) return;
      this.entries.push(...page.data);
      this.more = page.has_more;
      this.draw();
      if (page.data.length) this.#link(chainOf(page.data[0].id))?.focus();
    } catch {
      // The last entry may have been continued meanwhile, which changes its id.
      if (asked === this.asked) this.#read();
    }
  }

  #link(chain) {
    return this.list.querySelector(`a[data-chain="${CSS.escape(chain)}"]`);
  }

  /** Draw the loaded entries. */
  draw() {
    const wanted = this.field.value.trim();
    const locals = wanted ? [] : this.locals().map(entryOf);
    const rows = grouped([...locals, ...this.entries], { pins: !wanted });
    byId("conversations-empty").hidden = rows.length > 0;
    byId("conversations-empty").textContent =
      this.failure ||
      (wanted
        ? "No conversation contains this text."
        : "Conversations from this page and from your API clients appear here.");
    byId("conversations-more").hidden = !this.more;
    keyed(
      this.list,
      rows.map((row) => this.#same(row)),
      {
        key: ({ day, entry }) => day ?? nameOf(entry),
        make: (row) => (row.day ? h("li", { class: "day" }, h("h3", {}, row.day)) : this.#row(row.entry)),
        update: (node, row) => row.entry && this.#update(node, row.entry),
      },
    );
    this.#oneStop();
  }

  // Return the same row object while its displayed content is unchanged, as `keyed` compares objects.
  #same({ day, entry }) {
    const shown =
      day ?? JSON.stringify([entry, nameOf(entry) === nameOf({ id: this.current }), entry && ago(entry.updated_at)]);
    const row = this.rows.get(shown) ?? { day, entry };
    if (this.rows.size > 1000) this.rows.clear();
    this.rows.set(shown, row);
    return row;
  }

  // Roving tabindex: the list is one Tab stop, arrow keys move within it.
  #oneStop() {
    const links = [...this.list.querySelectorAll("a")];
    const stop =
      links.find((link) => link === document.activeElement) ??
      links.find((link) => link.hasAttribute("aria-current")) ??
      links[0];
    for (const link of links) link.tabIndex = link === stop ? 0 : -1;
  }

  #move(event) {
    const links = [...this.list.querySelectorAll("a")];
    const row = event.target.closest("li");
    const at = links.indexOf(row?.querySelector("a"));
    const next = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), Home: 0, End: links.length - 1 }[event.key];
    if (event.key === "ArrowRight") row.querySelector("button")?.focus();
    else if (event.key === "ArrowLeft") row.querySelector("a")?.focus();
    else if (next === undefined) return;
    else links[Math.min(next, links.length - 1)]?.focus();
    event.preventDefault();
    this.#oneStop();
  }

  #row(entry) {
    const node = h(
      "li",
      { "data-chain": nameOf(entry), class: "conversation" },
      h(
        "a",
        { "data-chain": nameOf(entry) },
        h("span", { class: "conversation-title", dir: "auto" }),
        h("span", { class: "conversation-meta" }),
      ),
    );
    if (!entry.local) {
      const label = "Actions for this conversation";
      const actions = popupButton({ label, symbol: "ellipsis", class: "quiet only", tabindex: -1 }, () =>
        this.#actions(this.shown.get(node)),
      );
      node.append(actions);
    }
    this.#update(node, entry);
    return node;
  }

  #update(node, entry) {
    this.shown.set(node, entry);
    const title = titleOf(entry);
    const link = node.querySelector("a");
    link.href = `#/talk/${entry.id}`;
    link.title = title;
    if (nameOf(entry) === nameOf({ id: this.current })) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    node.querySelector("button")?.setAttribute("aria-label", `Actions for “${cut(title, 40)}”`);
    const [state, kind] = STATES[entry.status] ?? [];
    link.firstChild.textContent = title;
    link.lastChild.replaceChildren(
      h("span", {}, ago(entry.updated_at)),
      h("span", { class: "conversation-model" }, plain(entry.model)),
      ...(state ? [h("span", { class: `chip ${kind}` }, state)] : []),
      ...(entry.local ? [h("span", { class: "chip" }, "not stored")] : []),
    );
  }

  #actions(entry) {
    const title = titleOf(entry);
    const { pinned } = entry;
    return [
      { text: "Rename", symbol: "pencil", act: () => this.#rename(entry, title) },
      { text: pinned ? "Unpin" : "Pin", symbol: "pin", act: () => this.#pin(entry, !pinned) },
      { text: "Export as Markdown", symbol: "download", act: () => this.#export(entry, title, "md") },
      { text: "Export as JSON", symbol: "download", act: () => this.#export(entry, title, "json") },
      { text: "Delete", symbol: "trash-2", act: () => this.#delete(entry, title), danger: true },
    ];
  }

  async #rename(entry, title) {
    const name = await asked({ title: "Rename this conversation", label: "Name", value: title, verb: "Rename" });
    if (!name || !(await this.#label(entry, { name }))) return;
    this.onrename();
    announce("Renamed.");
  }

  async #pin(entry, pinned) {
    if (await this.#label(entry, { pinned })) announce(pinned ? "Pinned." : "Unpinned.");
  }

  // Names and pins are stored by the server, so that every browser shows them.
  async #label(entry, changes) {
    try {
      await send("PATCH", `antiphon/chains/${entry.id}`, changes);
      await this.refresh();
      return true;
    } catch (error) {
      announce(error.message);
      return false;
    }
  }

  async #export(entry, title, format) {
    try {
      const { data } = await getJson(`antiphon/responses/${entry.id}/chain`);
      const text = format === "md" ? asMarkdown(data, title) : asJson(data);
      saveText(text, fileName(title, format), format === "md" ? "text/markdown" : "application/json");
      announce("Exported.");
    } catch (error) {
      announce(error.message);
    }
  }

  async #delete(entry, title) {
    const text = `“${title}”, with all of its answers and branches.`;
    if (!(await confirmed({ title: "Delete this conversation?", text, verb: "Delete" }))) return;
    const chain = nameOf(entry);
    try {
      if (entry.name || entry.pinned) await send("PATCH", `antiphon/chains/${entry.id}`, { name: null, pinned: false });
      const { data, forks } = await getJson(`antiphon/responses/${entry.id}/chain`);
      const made = [...data.map(({ response }) => response), ...forks].sort(
        (one, other) => other.created_at - one.created_at,
      );
      for (const { id } of made) {
        await send("DELETE", `responses/${id}`).catch((error) => {
          if (error.status !== 404) throw error; // already deleted
        });
      }
      announce("Conversation deleted.");
      this.entries = this.entries.filter(({ id }) => chainOf(id) !== chain);
      this.draw();
      this.field.focus();
      this.ondelete(chain);
    } catch (error) {
      announce(error.message);
    }
    this.refresh();
  }
}

// A list entry for a thread that the server does not store.
const entryOf = ({ address, title, last, running }) => ({
  local: true,
  id: address || "new",
  title,
  model: last.request.model,
  status: running ? "in_progress" : last.state === "failed" ? "failed" : "completed",
  updated_at: last.asked,
});

const titleOf = (entry) => plain(cut(entry.name || entry.title || "(no text)", 120));

const nameOf = (entry) => (entry?.id?.startsWith("resp_") ? chainOf(entry.id) : (entry?.id ?? ""));
