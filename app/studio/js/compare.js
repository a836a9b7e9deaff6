// The same conversation with several models, side by side; or a stored request, answered by other models.

import { Column, FIGURES } from "./compare/column.js";
import { ReplayView } from "./compare/replay.js";
import { best, ownTurns } from "./compare/result.js";
import { replaceAddress } from "./lib/address.js";
import { getJson } from "./lib/api.js";
import { announce, button, byId, h, icon } from "./lib/dom.js";
import { repeatOf } from "./lib/stored.js";

import { failureView } from "./parts/failure.js";
import { itemViews } from "./parts/items.js";

const MOST = 6; // columns
const EMPTY = "Send one message to several models, and compare their answers, speed and cost.";

export class Compare {
  // `parameters()` returns the options of Talk, which all models are sent.
  constructor({ parameters }) {
    this.parameters = parameters;
    this.models = [];
    this.columns = [];
    this.key = ""; // the address that is shown
    this.link = byId("nav").querySelector('[data-view="compare"]');
    this.stored = null; // the request of a stored response
    this.heads = h("div", { class: "compare-heads" });
    this.turns = h("div", { class: "compare-turns" }, h("p", { class: "note" }, EMPTY));
    this.add = button([icon("plus"), h("span", { class: "text" }, "Add model")], () => this.#add(), {
      class: "foldable",
    });
    this.changes = h("input", { type: "checkbox", role: "switch", on: { change: () => this.#drawChanges() } });
    this.prompt = h("textarea", {
      id: "compare-prompt",
      class: "message-field",
      rows: 2,
      dir: "auto",
      placeholder: "Message all models… (uses your Talk options)",
      on: { keydown: (event) => this.#key(event) },
    });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.store = h("input", { type: "checkbox", id: "compare-store", checked: true });
    this.stop = button([icon("square"), "Stop"], () => this.abort?.abort(), { hidden: true });
    this.sendText = h("span", {}, "Send to all");
    this.send = h("button", { class: "primary" }, icon("arrow-up"), this.sendText);
    this.form = h(
      "form",
      {
        class: "composer",
        "aria-label": "Message to all models",
        on: {
          submit: (event) => {
            event.preventDefault();
            this.#ask();
          },
        },
      },
      h("label", { for: "compare-prompt", class: "visually-hidden" }, "Message for all"),
      this.prompt,
      this.problem,
      h(
        "div",
        { class: "toolbar" },
        h("label", { class: "check note" }, this.store, " Store the answers (needed to see the cost and to continue)"),
        h("span", { class: "spring" }),
        this.stop,
        this.send,
      ),
    );
    byId("compare-tools").append(
      h("label", { class: "check note foldable-label" }, this.changes, " Differences"),
      this.add,
    );
    this.body = h(
      "div",
      { class: "compare-body", tabindex: 0, role: "region", "aria-label": "Answers" },
      this.heads,
      this.turns,
    );
    this.place = h("div", { class: "composer-place compare-place" }, this.form);
    this.replay = new ReplayView();
    byId("compare").append(this.body, this.place, this.replay.node);
    byId("compare-new").addEventListener("click", () => this.reset()); // also if its address is shown already
    for (let number = 0; number < 2; number++) this.#addColumn();
  }

  offer(models) {
    this.models = models;
    for (const [index, column] of this.columns.entries()) column.offer(models, index);
    this.replay.offer(models);
  }

  // `#/compare`, `#/compare/resp_…` (a stored response first), `#/compare?ids=…,…`, or `#/compare/run?filters`.
  show(argument, query = new URLSearchParams()) {
    const runs = argument === "run";
    for (const [node, hidden] of [
      [this.body, runs],
      [this.place, runs],
      [byId("compare-tools"), runs],
      [this.replay.node, !runs],
    ])
      node.hidden = hidden;
    if (runs) {
      this.replay.show(query);
      return;
    }
    const ids = (query.get("ids") ?? "").split(",").filter(Boolean).slice(0, MOST);
    const key = argument ?? ids.join(",");
    if (key === this.key) return;
    this.reset();
    this.key = key;
    this.#link();
    if (argument) this.#begin(argument);
    else if (ids.length) this.#restore(ids);
  }

  hide() {
    this.replay.hide();
  }

  reset() {
    this.abort?.abort();
    this.abort = null;
    this.key = "";
    this.#link();
    this.stored = null;
    this.#complain("");
    this.#busy(false);
    this.prompt.hidden = false;
    this.sendText.textContent = "Send to all";
    this.turns.replaceChildren(h("p", { class: "note" }, EMPTY));
    while (this.columns.length > 2) this.#removeColumn(this.columns.at(-1));
    for (const column of this.columns) column.clear();
    this.replay.reset();
    this.#figures();
  }

  #addColumn() {
    const column = new Column(this.columns.length, {
      figures: () => this.#figures(),
      remove: (each) => this.#remove(each),
    });
    this.columns.push(column);
    this.heads.append(column.head);
    column.offer(this.models, this.columns.length - 1);
    this.#layOut();
    return column;
  }

  #removeColumn(column) {
    this.columns = this.columns.filter((each) => each !== column);
    column.head.remove();
    for (const { cell } of column.turns) cell.remove();
    this.#layOut();
  }

  #add() {
    const column = this.#addColumn();
    // A model that begins later has no answers to the questions before.
    for (const row of this.turns.querySelectorAll(".compare-row")) row.append(column.cell().cell);
    column.select.focus();
  }

  #remove(column) {
    this.#removeColumn(column);
    this.#figures();
    this.#address();
    this.add.focus();
  }

  #layOut() {
    byId("compare").style.setProperty("--columns", String(this.columns.length));
    this.add.disabled = this.columns.length >= MOST || Boolean(this.abort);
    for (const { removal } of this.columns) removal.hidden = this.columns.length <= 2;
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    this.#ask();
  }

  #row(input) {
    const row = h("div", { class: "compare-row" });
    this.turns.querySelector(":scope > .note")?.remove();
    this.turns.append(h("div", { class: "question" }, itemViews(input)), row);
    return row;
  }

  // Begin with a stored response: other models answer its request.
  async #begin(id) {
    const [first, second] = this.columns;
    try {
      const chain = await getJson(`antiphon/responses/${encodeURIComponent(id)}/chain`);
      if (this.key !== id) return;
      const turn = chain.data.at(-1);
      this.stored = repeatOf(chain);
      this.prompt.hidden = true;
      this.sendText.textContent = "Run again";
      this.#row(turn.input).append(first.show(turn.response, turn.measures).cell);
      first.select.disabled = true;
      second.model = turn.response.model;
      this.send.focus();
    } catch (error) {
      if (this.key === id) this.turns.replaceChildren(failureView(error));
    }
  }

  // Show a comparison again, by the last response of each column.
  async #restore(ids) {
    const key = this.key;
    try {
      const chains = await Promise.all(ids.map((id) => getJson(`antiphon/responses/${encodeURIComponent(id)}/chain`)));
      if (this.key !== key) return;
      while (this.columns.length < ids.length) this.#addColumn();
      const turns = ownTurns(chains.map(({ data }) => data));
      const rows = Math.max(...turns.map(({ length }) => length));
      for (let number = 0; number < rows; number++) {
        const row = this.#row(turns.find((each) => each[number])[number].input);
        for (const [index, each] of turns.entries()) {
          const turn = each[number];
          row.append((turn ? this.columns[index].show(turn.response, turn.measures) : this.columns[index].cell()).cell);
        }
      }
      this.#drawChanges();
      this.prompt.focus();
    } catch (error) {
      if (this.key === key) this.turns.replaceChildren(failureView(error));
    }
  }

  async #ask() {
    if (this.abort) return;
    this.#complain("");
    const prompt = this.prompt.value.trim();
    if (!this.stored && !prompt) {
      this.#complain("Enter a message.");
      return;
    }
    let request;
    try {
      const input = [{ type: "message", role: "user", content: [{ type: "input_text", text: prompt }] }];
      request = this.stored ?? { ...this.parameters(), background: undefined, input };
    } catch (error) {
      this.#complain(error.message);
      return;
    }
    const abort = (this.abort = new AbortController());
    this.#busy(true);
    announce("Requests sent.");
    const asked = this.stored ? this.columns.slice(1) : this.columns;
    const store = this.store.checked;
    let row = this.turns.querySelector(".compare-row:last-child");
    if (!this.stored) row = this.#row(request.input);
    else for (const column of asked) for (const turn of column.turns.splice(0)) turn.cell.remove();
    const turns = asked.map((column) => {
      const { earlier = [], ...continued } = this.stored ? {} : column.context();
      const turn = column.cell();
      row.append(turn.cell);
      const body = {
        ...request,
        ...continued,
        input: [...earlier, ...request.input],
        model: column.model,
        stream: true,
        store,
      };
      return [column, turn, body];
    });
    this.prompt.value = "";
    this.body.scrollTop = this.body.scrollHeight;
    await Promise.all(turns.map(([column, turn, body]) => column.run(turn, body, abort.signal)));
    if (this.abort !== abort) return;
    this.abort = null;
    this.#busy(false);
    for (const [, turn] of turns) turn.input = request.input;
    this.#address();
    this.#drawChanges();
    announce("All answers are complete.");
  }

  #busy(busy) {
    this.send.hidden = busy;
    this.stop.hidden = !busy;
    for (const [index, { select, removal }] of this.columns.entries()) {
      select.disabled = busy || (Boolean(this.stored) && index === 0);
      removal.disabled = busy;
    }
    this.#layOut();
    if (!busy && document.activeElement === document.body && !byId("compare").hidden)
      (this.stored ? this.send : this.prompt).focus();
  }

  // The comparison can be opened again if all of its last answers are stored.
  #address() {
    const ids = this.columns.map(({ last }) => last);
    if (!ids.every(Boolean)) return;
    this.key = ids.join(",");
    this.#link();
    replaceAddress(this.link.hash);
  }

  // The navigation leads to the comparison that is shown.
  #link() {
    const { key } = this;
    this.link.href = !key ? "#/compare" : key.includes(",") ? `#/compare?ids=${key}` : `#/compare/${key}`;
  }

  #figures() {
    const leads = this.columns.map(() => []);
    const running = this.columns.some((column) => column.running);
    for (const [name, [, show, greatest]] of Object.entries(FIGURES)) {
      if (greatest === null || running) continue;
      for (const index of best(
        this.columns.map(({ figures }) => figures[name]),
        { greatest, show },
      ))
        leads[index].push(name);
    }
    for (const [index, column] of this.columns.entries()) column.mark(leads[index]);
  }

  #drawChanges() {
    const [first, ...others] = this.columns;
    for (const column of others) {
      for (const [index, turn] of column.turns.entries()) {
        const original = first.turns[index];
        column.compareWith(turn, this.changes.checked && original?.response ? original.text : null);
      }
    }
  }

  #complain(message) {
    this.problem.textContent = message;
  }
}
