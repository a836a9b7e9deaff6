// The bar above the log: search, values to filter by with their counts, and a range of time.

import { getJson } from "../lib/api.js";
import { button, byId, h, icon } from "../lib/dom.js";
import { menu } from "../lib/menu.js";
import { count, cut, plain } from "../lib/text.js";
import { conditions, listQuery, metadataFilter, RANGES } from "./address.js";
import { COLUMNS, stateName } from "./columns.js";

const PAUSE = 250; // ms after the last key before the text is searched
const ID = /^resp_\S+$/;
const STATUSES = ["completed", "in_progress", "queued", "incomplete", "failed", "cancelled"];
const MENUS = { model: "Model", tool: "Tool", backend: "Backend", key: "Key", delivery: "Delivery" };

export class Filters {
  /**
   * @param {object} on
   * @param {(query: import("./address.js").Query) => void} on.change
   * @param {(id: string) => void} on.open
   * @param {(names: string[] | null) => void} on.columns
   */
  constructor(on) {
    this.on = on;
    this.facets = {};
    this.query = null;
    this.search = h("input", {
      type: "search",
      id: "search-text",
      placeholder: "Search messages and answers, or resp_…",
      spellcheck: "false",
      autocomplete: "off",
      on: { input: () => this.#typed() },
    });
    this.form = h(
      "form",
      { id: "search", role: "search", on: { submit: (event) => this.#submit(event) } },
      h("label", { for: "search-text", class: "visually-hidden" }, "Search by text or id"),
      h("div", { class: "search" }, icon("search"), this.search),
    );
    this.statuses = h("ul", { class: "facet-row", "aria-label": "Status" });
    this.menus = Object.fromEntries(Object.keys(MENUS).map((name) => [name, facetMenu(MENUS[name])]));
    this.time = menu("Any time", (this.times = h("div", { class: "stack" })), { end: true });
    this.metadata = menu("Metadata", (this.metadataBody = h("div", { class: "stack" })));
    this.columnMenu = menu([icon("columns-2"), "Columns"], (this.columnBody = h("div", { class: "stack" })), {
      end: true,
    });
    this.columnMenu.classList.add("column-menu");
    this.columnMenu.addEventListener("toggle", () =>
      this.columnMenu.open ? this.#drawColumns() : this.columnBody.replaceChildren(),
    );
    this.clear = button("Clear", () => this.#set({ filters: {}, since: 0, from: "", to: "" }), {
      class: "quiet",
      hidden: true,
    });
    this.other = h("span", { class: "facet-others" });
    this.node = h(
      "div",
      { class: "filter-bar" },
      h("div", { class: "filter-row" }, this.form, h("span", { class: "spring" }), this.time, this.columnMenu),
      h(
        "div",
        { class: "filter-row", role: "group", "aria-label": "Narrow down" },
        this.statuses,
        Object.values(this.menus),
        this.metadata,
        this.other,
        this.clear,
      ),
    );
  }

  /** Show a query; the counts are those of `load`. */
  show(query) {
    this.query = query;
    if (document.activeElement !== this.search) this.search.value = query.filters.text ?? "";
    this.#draw();
  }

  /** Count the values again. */
  async load() {
    const asked = listQuery(this.query);
    const { data } = await getJson(`antiphon/responses/facets?${asked.slice(1)}`);
    if (asked !== listQuery(this.query)) return;
    if (JSON.stringify(data) === JSON.stringify(this.facets)) return;
    this.facets = data;
    this.#draw();
  }

  reset() {
    this.facets = {};
    this.search.value = "";
  }

  /** The columns that can be chosen, of which some are shown; `chosen`: not by default. */
  offerColumns(shown, chosen) {
    this.offered = { shown, chosen };
    if (this.columnMenu.open) this.#drawColumns();
  }

  #drawColumns() {
    const { shown, chosen } = this.offered;
    const change = () => this.on.columns([...this.columnBody.querySelectorAll(":checked")].map(({ value }) => value));
    const box = ([name, { name: text }]) =>
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", value: name, checked: shown.includes(name), on: { change } }),
        text,
      );
    /** @type {any} */
    const field = document.activeElement?.closest(".column-menu input");
    const focused = field?.value;
    this.columnBody.replaceChildren(
      ...Object.entries(COLUMNS).map(box),
      button("Default columns", () => this.on.columns(null), { class: "quiet", disabled: !chosen }),
    );
    if (focused) this.columnBody.querySelector(`[value="${focused}"]`).focus();
  }

  #set(change) {
    this.on.change({ ...this.query, ...change });
  }

  #filter(name, value) {
    const { [name]: _, ...others } = this.query.filters;
    this.#set({ filters: value ? { ...others, [name]: value } : others });
  }

  #typed() {
    clearTimeout(this.typing);
    const text = this.search.value.trim();
    if (!ID.test(text)) this.typing = setTimeout(() => this.#filter("text", text), PAUSE);
  }

  #submit(event) {
    event.preventDefault();
    clearTimeout(this.typing);
    const text = this.search.value.trim();
    if (ID.test(text)) this.on.open(text);
    else this.#filter("text", text);
  }

  #draw() {
    const { filters } = this.query;
    const values = this.facets.status ?? [];
    const number = (status) => values.find(({ value }) => value === status)?.count ?? 0;
    const listed = STATUSES.filter((status) => number(status) || filters.status === status);
    const all = values.reduce((sum, { count: each }) => sum + each, 0);
    this.#keep(this.statuses, [
      facet("All", all, !filters.status, () => this.#filter("status", "")),
      ...listed.map((status) =>
        facet(
          stateName(status),
          number(status),
          filters.status === status,
          () => this.#filter("status", filters.status === status ? "" : status),
          status,
        ),
      ),
    ]);
    for (const [name, made] of Object.entries(this.menus)) {
      const found = this.facets[name] ?? [];
      const chosen = filters[name];
      made.hidden = !chosen && found.length < (name === "tool" ? 1 : 2);
      made.label(chosen ? [`${MENUS[name]}: `, h("b", {}, plain(cut(chosen, 24)))] : MENUS[name]);
      made.classList.toggle("set", Boolean(chosen));
      const choose = (value) => () => {
        made.close();
        this.#filter(name, value);
      };
      const rows = found.map(({ value, count: each }) =>
        facet(plain(value), each, value === chosen, choose(value === chosen ? "" : value)),
      );
      if (chosen && !found.some(({ value }) => value === chosen))
        rows.unshift(facet(plain(chosen), 0, true, choose("")));
      this.#keep(made.list, [facet("Any", null, !chosen, choose("")), ...rows]);
    }
    this.#drawTime();
    this.#drawMetadata();
    const { conversation } = filters;
    this.other.replaceChildren(
      ...(conversation
        ? [
            h(
              "button",
              {
                type: "button",
                class: "chip set",
                "aria-label": "Remove the filter by conversation",
                on: { click: () => this.#filter("conversation", "") },
              },
              `Conversation ${conversation.slice(0, 12)}…`,
              icon("x"),
            ),
          ]
        : []),
    );
    this.clear.hidden = !conditions(this.query) && !filters.text;
  }

  // Replace the entries of a list, and keep the focus at the same place.
  #keep(list, nodes) {
    const index = [...list.children].findIndex((node) => node.contains(document.activeElement));
    list.replaceChildren(...nodes);
    list.children[index]?.querySelector("button")?.focus();
  }

  #drawTime() {
    const { since, from, to } = this.query;
    const name = RANGES.find(([range]) => range === since)?.[1] ?? (since ? `Last ${count(since)} s` : "Any time");
    this.time.label(from || to ? [from, to].map((time) => time.replace("T", " ") || "…").join(" – ") : name);
    this.time.classList.toggle("set", Boolean(since || from || to));
    if (this.time.contains(document.activeElement) && this.time.open) return; // a time is being entered
    const set = (range) => () => {
      this.time.close();
      this.#set({ since: range, from: "", to: "" });
    };
    const custom = (id, label, value) =>
      h("div", { class: "field" }, h("label", { for: id }, label), h("input", { type: "datetime-local", id, value }));
    this.times.replaceChildren(
      h(
        "ul",
        { class: "facets" },
        [[0, "Any time"], ...RANGES].map(([range, text]) =>
          facet(text, null, !from && !to && range === since, set(range)),
        ),
      ),
      h(
        "form",
        {
          class: "stack",
          on: {
            submit: (event) => {
              event.preventDefault();
              this.time.close();
              this.#set({ since: 0, from: byId("filter-from").value, to: byId("filter-to").value });
            },
          },
        },
        custom("filter-from", "From", from),
        custom("filter-to", "To", to),
        h("button", {}, "Apply"),
      ),
    );
  }

  #drawMetadata() {
    const set = Object.entries(this.query.filters).filter(([name]) => name.startsWith("metadata["));
    this.metadata.label(
      set.length
        ? ["Metadata: ", h("b", {}, set.map(([name, value]) => `${name.slice(9, -1)}=${cut(value, 16)}`).join(", "))]
        : "Metadata",
    );
    this.metadata.classList.toggle("set", set.length > 0);
    if (this.metadata.contains(document.activeElement) && this.metadata.open) return;
    this.metadataBody.replaceChildren(
      h(
        "ul",
        { class: "facets" },
        set.map(([name, value]) =>
          facet(plain(`${name.slice(9, -1)} = ${value}`), null, true, () => this.#filter(name, "")),
        ),
      ),
      h(
        "form",
        {
          class: "stack",
          on: {
            submit: (event) => {
              event.preventDefault();
              const filter = metadataFilter(byId("filter-metadata").value);
              if (!filter) return;
              this.metadata.close();
              this.#filter(...filter);
            },
          },
        },
        h(
          "div",
          { class: "field" },
          h("label", { for: "filter-metadata" }, "Name and value"),
          h("input", { id: "filter-metadata", placeholder: "team=web", spellcheck: "false", autocomplete: "off" }),
        ),
        h("button", {}, "Apply"),
      ),
    );
  }
}

function facetMenu(label) {
  const list = h("ul", { class: "facets" });
  return Object.assign(menu(label, list), { list });
}

const facet = (text, number, pressed, onclick, kind = "") =>
  h(
    "li",
    {},
    button(
      [
        kind ? h("span", { class: `state-dot ${kind}`, "aria-hidden": "true" }) : null,
        h("span", { class: "facet-name" }, text),
        number === null ? null : h("span", { class: "facet-count" }, count(number)),
      ].filter(Boolean),
      onclick,
      { class: "facet", "aria-pressed": pressed },
    ),
  );
