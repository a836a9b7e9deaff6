// The events of a stream as a list: runs of deltas folded into one row, rows made only where they are seen.

import { button, h, schedule } from "../lib/dom.js";
import { count, pretty, seconds } from "../lib/text.js";

const ROW = 28; // px, as in the style sheet
const MARGIN = 10; // rows that are made beyond the edges

export class Timeline {
  constructor() {
    this.log = null;
    this.rows = []; // an index of the log, or {from, to} for a run of deltas
    this.read = 0; // events of the log that the rows have
    this.dropped = 0;
    this.list = h("ol", { class: "timeline-rows" });
    this.scroller = h(
      "div",
      {
        class: "timeline",
        tabindex: 0,
        role: "region",
        "aria-label": "Events",
        on: { scroll: () => schedule(this.#paint) },
      },
      this.list,
    );
    this.note = h("p", { class: "note", hidden: true });
    this.filter = h("input", {
      type: "search",
      id: "event-filter",
      placeholder: "for example output_item",
      on: { input: () => this.#again() },
    });
    this.fold = h("input", { type: "checkbox", id: "event-fold", checked: true, on: { change: () => this.#again() } });
    this.detail = h("div", { class: "event-detail", hidden: true });
    this.node = h(
      "div",
      { class: "timeline-view" },
      h(
        "div",
        { class: "toolbar" },
        h("label", { for: "event-filter" }, "Filter"),
        this.filter,
        h("label", { class: "check" }, this.fold, " Fold deltas"),
      ),
      this.note,
      this.scroller,
      this.detail,
    );
    // Observed, since to read it in each frame would force a layout. 0 while the timeline is hidden.
    this.height = 0;
    new ResizeObserver(([{ contentRect }]) => {
      this.height = contentRect.height;
      schedule(this.#paint);
    }).observe(this.scroller);
  }

  show(log) {
    this.log = log;
    this.#close();
    this.#again();
  }

  // There are more events.
  update() {
    schedule(this.#paint);
  }

  #again() {
    this.rows = [];
    this.read = 0;
    this.dropped = this.log?.dropped ?? 0;
    this.scroller.scrollTop = 0;
    schedule(this.#paint);
  }

  #extend() {
    const { events } = this.log;
    const wanted = this.filter.value.trim().toLowerCase();
    for (; this.read < events.length; this.read++) {
      const { type } = events[this.read];
      if (wanted && !type.toLowerCase().includes(wanted)) continue;
      const last = this.rows.at(-1);
      if (this.fold.checked && type.endsWith(".delta")) {
        if (last?.type === type) last.to = this.read;
        else this.rows.push({ type, from: this.read, to: this.read });
      } else {
        this.rows.push({ type, from: this.read, to: this.read });
      }
    }
  }

  #paint = () => {
    if (!this.log || !this.height) return;
    if (this.log.dropped !== this.dropped) {
      this.rows = [];
      this.read = 0;
      this.dropped = this.log.dropped;
    }
    this.note.hidden = !this.dropped;
    this.note.textContent = `The first ${count(this.dropped)} events were discarded.`;
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    const atEnd = scrollTop + clientHeight >= scrollHeight - ROW;
    this.#extend();
    this.list.style.height = `${this.rows.length * ROW}px`;
    if (atEnd && !this.log.ended) this.scroller.scrollTop = this.rows.length * ROW;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - MARGIN);
    const rows = this.rows.slice(first, first + Math.ceil(clientHeight / ROW) + 2 * MARGIN);
    const focused = this.list.contains(document.activeElement)
      ? Number(/** @type {any} */ (document.activeElement).dataset.row)
      : -1;
    this.list.replaceChildren(...rows.map((row, index) => this.#row(row, first + index)));
    if (focused >= 0) this.list.querySelector(`[data-row="${focused}"]`)?.focus({ preventScroll: true });
  };

  #row(row, index) {
    const { events } = this.log;
    const begin = events[row.from];
    const many = row.to - row.from;
    const name = row.type.replace(/^response\./, "");
    const time = many ? `${seconds(begin.at)} – ${seconds(events[row.to].at)}` : seconds(begin.at);
    const made = h(
      "li",
      { "aria-setsize": this.rows.length, "aria-posinset": index + 1 },
      button(
        [
          h("span", { class: "event-time" }, time),
          h("span", { class: `event-name ${kindOf(row.type)}` }, name),
          many ? h("span", { class: "event-count" }, `× ${count(many + 1)}`) : null,
        ],
        () => this.#open(row),
        { class: "event", "data-row": index, title: row.type },
      ),
    );
    made.style.transform = `translateY(${index * ROW}px)`;
    return made;
  }

  #open(row) {
    const { events } = this.log;
    const shown = events.slice(row.from, Math.min(row.to + 1, row.from + 200));
    const left = row.to + 1 - row.from - shown.length;
    const text = shown.map((event) => pretty(event.raw)).join("\n");
    const close = button("Close", () => this.#close(), { class: "quiet" });
    this.opener = document.activeElement;
    this.detail.replaceChildren(
      h("div", { class: "toolbar" }, h("h3", {}, row.type), close),
      h(
        "pre",
        { class: "json", tabindex: 0, role: "region", "aria-label": "The event as JSON" },
        left ? `${text}\n… and ${count(left)} more` : text,
      ),
    );
    this.detail.hidden = false;
    close.focus();
  }

  #close() {
    const held = this.detail.contains(document.activeElement);
    this.detail.hidden = true;
    if (held) (this.opener?.isConnected ? this.opener : this.scroller).focus();
  }
}

function kindOf(type) {
  if (type === "error" || type.endsWith(".failed")) return "bad";
  if (type.endsWith(".delta")) return "delta";
  if (/^response\.(created|queued|in_progress|completed|incomplete)$/.test(type)) return "state";
  return "";
}
