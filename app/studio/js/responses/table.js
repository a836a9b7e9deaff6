// The log as a table, of which only the rows that are seen are in the page.

import { button, h, schedule } from "../lib/dom.js";
import { keyed } from "../lib/keyed.js";
import { many } from "../lib/text.js";
import { COLUMNS, defaultColumns, NARROW } from "./columns.js";
import { scaleOf } from "./log.js";

const MARGIN = 12; // rows that are made beyond the edges
const NARROW_BELOW = 640; // px

/** The rows that are seen: [from, to). */
export function visibleRows(top, height, row, number) {
  const from = Math.max(0, Math.min(number, Math.floor(top / row)) - MARGIN);
  return [from, Math.min(number, Math.ceil((top + height) / row) + MARGIN)];
}

export class LogTable {
  /**
   * @param {object} on
   * @param {(sort: string) => void} on.sort
   * @param {() => void} on.end the end of the loaded rows is near
   * @param {() => void} on.release the rows that are held back are wanted
   * @param {(id: string) => string} on.address of a response
   */
  constructor(on) {
    this.on = on;
    this.rows = [];
    this.chosen = null; // names of columns, or null for the default
    this.names = [];
    this.sort = "-time";
    this.active = null; // the id of the row that Tab reaches
    this.open = null; // the id of the response in the drawer
    this.head = h("thead");
    this.above = h("tbody", { class: "spacer", "aria-hidden": "true" }, h("tr", {}, h("td", {})));
    this.body = h("tbody", {
      class: "rows",
      on: { focusin: ({ target }) => this.#focused(target) },
    });
    this.below = h("tbody", { class: "spacer", "aria-hidden": "true" }, h("tr", {}, h("td", {})));
    this.columns = h("colgroup");
    this.table = h(
      "table",
      { class: "log", "aria-label": "Responses" },
      this.columns,
      this.head,
      this.above,
      this.body,
      this.below,
    );
    this.scroller = h(
      "div",
      {
        class: "log-scroller",
        tabindex: -1,
        on: { scroll: () => schedule(this.paint), keydown: (event) => this.#key(event) },
      },
      this.table,
    );
    this.news = button("", () => this.on.release(), { class: "log-news", hidden: true });
    this.node = h("div", { class: "log-place" }, this.news, this.scroller);
    new ResizeObserver(() => schedule(this.#resized)).observe(this.scroller);
  }

  /** Whether rows must not move: the list is scrolled, or somebody points at a row or is in one. */
  get held() {
    return this.scroller.scrollTop > 0 || this.body.matches(":hover") || this.body.contains(document.activeElement);
  }

  clear() {
    this.show([], 0);
    this.scroller.scrollTop = 0;
    this.active = null;
  }

  /** Show rows, in this order; `held` is the number of those that wait. */
  show(rows, held, sort = this.sort) {
    this.rows = rows;
    this.sort = sort;
    this.news.hidden = !held;
    this.news.textContent = `${many(held, "new response", "new responses")}`;
    if (!rows.some(({ id }) => id === this.active)) this.active = rows[0]?.id ?? null;
    const scale = scaleOf(rows);
    if (scale !== this.scale) this.table.style.setProperty("--scale", scale.toFixed(4));
    this.scale = scale;
    this.#setColumns();
    this.paint();
  }

  /** @param {string[] | null} names */
  choose(names) {
    this.chosen = names;
    this.#setColumns();
    this.paint();
  }

  /** Mark the response that is shown in the drawer. */
  mark(id) {
    this.open = id;
    if (id && this.rows.some((row) => row.id === id)) this.active = id;
    this.paint();
  }

  /** The id of the row after (1) or before (-1) another one. */
  neighbour(id, step) {
    const index = this.rows.findIndex((row) => row.id === id);
    return index < 0 ? null : (this.rows[index + step]?.id ?? null);
  }

  focus(id) {
    const index = this.rows.findIndex((row) => row.id === id);
    if (index < 0) return;
    this.active = id;
    this.#reveal(index);
    this.paint();
    this.body.querySelector(`a[data-id="${CSS.escape(id)}"]`)?.focus({ preventScroll: true });
  }

  #resized = () => {
    this.#setColumns();
    this.paint();
  };

  #setColumns() {
    const width = this.scroller.clientWidth;
    if (!width) return;
    const narrow = width < NARROW_BELOW;
    const names = narrow ? Object.keys(NARROW) : (this.chosen ?? defaultColumns(width, this.rows));
    const key = JSON.stringify([names, this.sort]);
    if (key === this.shown) return;
    this.shown = key;
    this.names = names;
    const all = narrow ? NARROW : COLUMNS;
    this.definitions = names.map((name) => all[name]);
    this.table.classList.toggle("narrow", narrow);
    this.columns.replaceChildren(
      ...this.definitions.map(({ width: size }) => {
        const column = h("col");
        if (size) column.style.width = `${size}px`;
        return column;
      }),
    );
    const fixed = this.definitions.reduce((sum, { width: size }) => sum + (size || (narrow ? 0 : 110)), 0);
    this.table.style.minWidth = `${fixed}px`;
    this.head.replaceChildren(
      h(
        "tr",
        {},
        this.definitions.map((definition, index) => this.#heading(names[index], definition)),
      ),
    );
    for (const spacer of [this.above, this.below]) spacer.querySelector("td").colSpan = names.length;
    if (this.#focusedId) this.scroller.focus({ preventScroll: true });
    keyed(this.body, [], this.how); // each row has other cells now
  }

  #heading(name, { name: text, number, unsorted }) {
    const descending = this.sort === `-${name}`;
    const sorted = descending || this.sort === name;
    const next = sorted === descending && sorted ? name : `-${name}`;
    const label = unsorted
      ? text
      : button(text, () => this.on.sort(sorted ? next : name === "time" || number ? `-${name}` : name), {
          class: "sort",
        });
    return h(
      "th",
      {
        scope: "col",
        class: number ? "number" : null,
        "aria-sort": sorted ? (descending ? "descending" : "ascending") : null,
      },
      label,
    );
  }

  get #focusedId() {
    const { activeElement } = document;
    return this.body.contains(activeElement) ? activeElement.closest("tr").querySelector("a").dataset.id : null;
  }

  get #rowHeight() {
    return Number.parseFloat(getComputedStyle(this.table).getPropertyValue("--row")) || 40;
  }

  paint = () => {
    const { clientHeight, scrollTop } = this.scroller;
    if (!this.rows.length) keyed(this.body, [], this.how); // also while it is hidden: the key may be another one
    if (!clientHeight || !this.definitions) return;
    const height = this.#rowHeight;
    const [from, to] = visibleRows(scrollTop, clientHeight, height, this.rows.length);
    const rows = this.rows.slice(from, to);
    // Browsers lay out when a focused element is removed: while rows are missing, that would change the scroll position.
    const focused = this.#focusedId;
    if (focused && !rows.some(({ id }) => id === focused)) this.scroller.focus({ preventScroll: true });
    this.above.hidden = from === 0;
    this.below.hidden = to === this.rows.length;
    this.above.firstChild.style.height = `${from * height}px`;
    this.below.firstChild.style.height = `${(this.rows.length - to) * height}px`;
    keyed(this.body, rows, this.how);
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    [...this.body.children].forEach((row, index) => {
      const id = this.rows[from + index].id;
      row.setAttribute("aria-rowindex", from + index + 2);
      row.classList.toggle("open", id === this.open);
      const link = row.querySelector("a");
      link.tabIndex = id === this.active ? 0 : -1;
      if (id === this.open) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
    if (to >= this.rows.length - MARGIN) this.on.end();
  };

  how = {
    key: ({ id }) => id,
    make: (entry) => h("tr", {}, this.#cells(entry)),
    update: (node, entry) => {
      const focused = node.contains(document.activeElement);
      if (focused) this.scroller.focus({ preventScroll: true });
      node.replaceChildren(...this.#cells(entry));
      if (focused) node.querySelector("a").focus({ preventScroll: true });
    },
  };

  #cells(entry) {
    const link = (text) =>
      h("a", { href: this.on.address(entry.id), "data-id": entry.id, dir: "auto", tabindex: -1 }, text);
    return this.definitions.map(({ cell, number, name }, index) => {
      const content = cell(entry, link);
      // Where the column of the input is not shown, the first cell leads to the response.
      const leads = index === 0 && !this.names.includes("input") && !this.names.includes("exchange");
      return h(
        "td",
        { class: number ? "number" : null, "data-column": name, dir: name === "Output" ? "auto" : null },
        leads ? link(content) : content,
      );
    });
  }

  #focused(target) {
    const id = target.dataset?.id;
    if (id && id !== this.active) {
      this.active = id;
      schedule(this.paint);
    }
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.#rowHeight) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[
      event.key
    ];
    if (!step || this.head.contains(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const index = this.rows.findIndex(({ id }) => id === this.active);
    const next = Math.max(0, Math.min(this.rows.length - 1, index + step));
    if (this.rows[next]) this.focus(this.rows[next].id);
  }

  #reveal(index) {
    const height = this.#rowHeight;
    const head = this.head.offsetHeight;
    const { scrollTop, clientHeight } = this.scroller;
    if (index * height < scrollTop) this.scroller.scrollTop = index * height;
    else if ((index + 1) * height + head > scrollTop + clientHeight)
      this.scroller.scrollTop = (index + 1) * height + head - clientHeight;
  }
}
