// The log of the responses of one's key: a table that is filtered by its address, and a drawer with one of them.

import { replaceAddress } from "./lib/address.js";
import { getJson } from "./lib/api.js";
import { askForKey } from "./lib/dialog.js";
import { announce, button, byId, h, icon } from "./lib/dom.js";
import { many } from "./lib/text.js";
import { Watch } from "./lib/watch.js";
import { conditions, listQuery, readQuery, writeQuery } from "./responses/address.js";
import { Detail } from "./responses/detail.js";
import { Filters } from "./responses/filters.js";
import { isRunning, Log } from "./responses/log.js";
import { refusedView } from "./responses/refused.js";
import { LogTable } from "./responses/table.js";

const FIRST = 50; // entries of the first page
const PAGE = 100;
const NEWEST = 30; // entries that are looked at again
const EVERY = 3000; // ms between two looks
const COUNT_EVERY = 10_000; // ms between two counts of the values
const MOST = 5000; // entries that are loaded by themselves while one scrolls
const COLUMNS = "antiphon.columns";
const NOTHING = "No stored responses yet. Responses to every client that uses your key appear here.";

export class Responses {
  constructor() {
    this.watch = new Watch(() => (this.refused ? this.#refuse() : this.#refresh()), EVERY);
    this.log = new Log();
    this.query = readQuery(new URLSearchParams());
    this.filters = new Filters({
      change: (query) => this.#go(null, query, true),
      open: (id) => this.#go(id),
      columns: (names) => this.#choose(names),
    });
    this.table = new LogTable({
      address: (id) => this.#address(id),
      sort: (sort) => this.#go(this.detail.id, { ...this.query, sort }, true),
      end: () => this.log.more && !this.loading && this.log.entries.length < MOST && this.#more(),
      release: () => this.#release(),
    });
    this.detail = new Detail({
      address: (id) => this.#address(id),
      close: () => this.#go(null),
      deleted: (id) => {
        this.log.remove(id);
        this.#draw();
        this.#go(null);
      },
      neighbour: (step) => this.table.neighbour(this.detail.id, step),
    });
    this.empty = h("p", { class: "note log-empty", hidden: true });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.summary = h("span", { class: "note", role: "status" });
    this.older = button("Load older", () => this.#more(), { class: "quiet", hidden: true });
    this.run = h(
      "a",
      { class: "quiet" },
      icon("columns-2"),
      h("span", {}, "Run ", h("span", { class: "log-run-text" }, "these "), "with another model"),
    );
    this.stored = h(
      "div",
      { class: "log-view" },
      this.filters.node,
      this.problem,
      this.empty,
      this.table.node,
      h("div", { class: "log-foot" }, this.summary, this.older, h("span", { class: "spring" }), this.run),
    );
    this.refusals = h("div", { class: "view-body stack", hidden: true });
    byId("responses-body").append(this.stored, this.refusals, this.detail.node);
    this.#choose(JSON.parse(localStorage.getItem(COLUMNS) ?? "null"));
  }

  // The view is shown, maybe with a response.
  show(argument, search = new URLSearchParams()) {
    this.refused = argument === "refused";
    const query = readQuery(search);
    const changed = writeQuery({ ...query, sort: "" }) !== writeQuery({ ...this.query, sort: "" });
    this.query = query;
    for (const kind of ["stored", "refused"]) {
      const link = byId(`kind-${kind}`);
      if ((kind === "refused") === this.refused) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.stored.hidden = this.refused;
    this.refusals.hidden = !this.refused;
    if (changed) this.#forget();
    this.filters.show(query);
    const id = this.refused ? null : argument;
    const left = this.detail.id;
    if (!id) this.detail.close();
    else if (id !== left) this.detail.open(id);
    byId("responses").dataset.open = id ? "true" : "";
    this.table.mark(id);
    if (!id && left) this.table.focus(left);
    this.#draw();
    this.watch.start();
  }

  hide() {
    this.watch.stop();
    this.detail.abort?.abort();
  }

  // Forget what another key has seen.
  reset() {
    this.#forget();
    this.filters.reset();
    this.refusals.replaceChildren();
    this.detail.close();
  }

  #forget() {
    this.log.clear();
    this.table.clear();
    this.counted = 0;
    this.empty.hidden = true;
    this.asked = {};
    this.loading = false;
  }

  #address(id, query = this.query) {
    return `#/responses${id ? `/${encodeURIComponent(id)}` : ""}${writeQuery(query)}`;
  }

  #go(id, query = this.query, replace = false) {
    if (replace) replaceAddress(this.#address(id, query));
    else location.hash = this.#address(id, query);
  }

  #choose(names) {
    if (names) localStorage.setItem(COLUMNS, JSON.stringify(names));
    else localStorage.removeItem(COLUMNS);
    this.table.choose(names);
    this.filters.offerColumns(this.table.names, Boolean(names));
  }

  async #refuse() {
    try {
      const page = await getJson("antiphon/refusals?limit=100");
      const text = JSON.stringify(page);
      if (!this.refused || (text === this.seen && this.refusals.children.length)) return;
      this.seen = text;
      this.refusals.replaceChildren(...refusedView(page.data));
    } catch (error) {
      this.#fail(error);
    }
  }

  async #refresh() {
    const asked = this.asked;
    const query = listQuery(this.query);
    try {
      const first = !this.log.entries.length;
      const page = await getJson(`antiphon/responses?limit=${first ? FIRST : NEWEST}${query}`);
      if (asked !== this.asked || this.refused) return;
      this.problem.textContent = "";
      const changed = this.log.refresh(page, { hold: !first && this.table.held });
      if (changed || first) this.#draw();
      if (changed || Date.now() - (this.counted ?? 0) > COUNT_EVERY) {
        this.counted = Date.now();
        await this.filters.load();
      }
    } catch (error) {
      if (asked === this.asked) this.#fail(error);
    }
  }

  async #more() {
    const asked = this.asked;
    this.loading = true;
    try {
      const page = await getJson(`antiphon/responses?limit=${PAGE}&after=${this.log.last}${listQuery(this.query)}`);
      if (asked !== this.asked) return;
      this.log.extend(page);
      this.loading = false;
      this.#draw();
    } catch (error) {
      if (asked === this.asked) this.#fail(error);
      this.loading = false;
    }
  }

  #fail(error) {
    askForKey(error);
    this.problem.textContent = error.message;
    this.#draw();
  }

  #release() {
    this.log.release();
    this.table.scroller.scrollTop = 0;
    this.#draw();
    announce("New responses are shown.");
  }

  #draw() {
    const { log, query } = this;
    const rows = log.sorted(query.sort);
    this.table.node.hidden = !rows.length;
    this.table.show(rows, log.held.length, query.sort);
    const filtered = conditions(query) > 0 || Boolean(query.filters.text);
    const known = rows.length > 0 || Boolean(this.problem.textContent);
    this.empty.hidden = known || !this.counted;
    this.empty.textContent = !filtered
      ? NOTHING
      : log.more
        ? "No match in the last 1,000 responses."
        : "No responses match these filters.";
    const running = rows.filter(isRunning).length;
    this.summary.textContent = [
      rows.length ? `${many(rows.length, "response")}${log.more ? " loaded" : ""}` : "",
      running ? `${running} running` : "",
      log.more && query.sort !== "-time" ? "only loaded rows are sorted" : "",
    ]
      .filter(Boolean)
      .join(" · ");
    this.older.hidden = !log.more;
    this.older.textContent = rows.length ? "Load older" : "Search further back";
    this.run.hidden = !rows.length;
    this.run.href = `#/compare/run${writeQuery({ ...query, sort: "" })}`;
    if (this.table.names.length) this.filters.offerColumns(this.table.names, Boolean(this.table.chosen));
  }
}
