// The same input to two models, side by side; or a stored response beside what another model makes of its request.

import { ApiError, getJson, stream } from "./lib/api.js";
import { announce, byId, h, icon, schedule } from "./lib/dom.js";
import { LiveResponse } from "./lib/live.js";
import { EventLog } from "./lib/log.js";
import { recorded, repeatOf } from "./lib/stored.js";
import { money } from "./lib/tables.js";
import { count, plain, seconds, speed } from "./lib/text.js";
import { AnswerView, textOf } from "./parts/answer.js";
import { differenceView } from "./parts/difference.js";
import { failureView } from "./parts/failure.js";
import { itemViews } from "./parts/items.js";

export class Compare {
  // `parameters()` returns the options of Talk, with which both models are asked.
  constructor({ parameters }) {
    this.parameters = parameters;
    this.columns = ["First", "Second"].map((name) => new Column(name));
    byId("compare-columns").append(...this.columns.map(({ node }) => node));
    this.form = byId("compare-form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    byId("compare-prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#ask();
      }
    });
    byId("compare-stop").addEventListener("click", () => this.abort?.abort());
    this.id = null;
  }

  offer(models) {
    for (const [index, column] of this.columns.entries()) column.offer(models, index);
  }

  show(id) {
    if (id === this.id) return;
    this.reset();
    this.id = id;
    if (id) this.#load(id);
  }

  hide() {}

  reset() {
    this.abort?.abort();
    this.id = null;
    this.stored = null;
    this.#complain("");
    byId("compare-prompt").hidden = false;
    byId("compare-send-text").textContent = "Send to both";
    byId("compare-question").replaceChildren();
    byId("compare-result").hidden = true;
    for (const column of this.columns) column.clear();
  }

  // Begin with a stored response: its request is asked again in the second column.
  async #load(id) {
    const [first, second] = this.columns;
    try {
      const chain = await getJson(`antiphon/responses/${encodeURIComponent(id)}/chain`);
      if (this.id !== id) return;
      const turn = chain.data.at(-1);
      this.stored = repeatOf(chain);
      byId("compare-prompt").hidden = true;
      byId("compare-send-text").textContent = "Run again";
      byId("compare-question").replaceChildren(...itemViews(turn.input));
      first.show(turn.response, turn.measures ?? {});
      second.model = turn.response.model;
      byId("compare-send").focus();
    } catch (error) {
      if (this.id === id) byId("compare-question").replaceChildren(failureView(error));
    }
  }

  async #ask() {
    if (this.abort) return;
    this.#complain("");
    const prompt = byId("compare-prompt").value.trim();
    if (!this.stored && !prompt) {
      this.#complain("Write something first.");
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
    const asked = this.stored ? this.columns.slice(1) : this.columns;
    if (!this.stored) byId("compare-question").replaceChildren(...itemViews(request.input));
    byId("compare-result").hidden = true;
    this.#busy(true);
    const abort = (this.abort = new AbortController());
    announce(this.stored ? "The answer is coming." : "The answers are coming.");
    const store = byId("compare-store").checked;
    await Promise.all(
      asked.map((column) => column.run({ ...request, model: column.model, stream: true, store }, abort.signal)),
    );
    if (this.abort !== abort) return;
    this.abort = null;
    this.#busy(false);
    this.#result();
  }

  #busy(busy) {
    byId("compare-send").hidden = busy;
    byId("compare-stop").hidden = !busy;
    if (!busy && document.activeElement === document.body)
      (this.stored ? byId("compare-send") : byId("compare-prompt")).focus();
  }

  #complain(message) {
    byId("compare-problem").textContent = message;
  }

  // What can be compared when both have ended: figures and texts.
  async #result() {
    if (!this.columns.every(({ response }) => response)) {
      announce("There is nothing to compare: an answer is missing.");
      return;
    }
    /** @type {[string, (column: any) => string][]} */
    const rows = [
      [
        "First token",
        ({ measures: { first_token_seconds: time } }) => (typeof time === "number" ? seconds(time * 1000) : "–"),
      ],
      ["Total", ({ measures: { seconds: time } }) => (typeof time === "number" ? seconds(time * 1000) : "–")],
      ["Tokens a second", ({ response, measures }) => speed(response.usage?.output_tokens, measures) ?? "–"],
      ["Input tokens", ({ response }) => (response.usage ? count(response.usage.input_tokens) : "–")],
      ["Output tokens", ({ response }) => (response.usage ? count(response.usage.output_tokens) : "–")],
      ["Cost", ({ measures: { cost } }) => money(cost)],
      ["Backend", ({ measures: { backend } }) => plain(backend ?? "–")],
      ["Status", ({ response }) => plain(response.status)],
    ];
    const [before, after] = this.columns.map(({ response }) => textOf(response));
    const difference = await differenceView(before, after);
    byId("compare-result").replaceChildren(
      h("h3", {}, "Figures"),
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Figures" },
        h(
          "table",
          { class: "compare-figures" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("td", {}),
              this.columns.map(({ response }, index) =>
                h("th", { scope: "col", class: "number" }, `${index + 1}. ${plain(response.model)}`),
              ),
            ),
          ),
          h(
            "tbody",
            {},
            rows.map(([name, value]) =>
              h(
                "tr",
                {},
                h("th", { scope: "row" }, name),
                this.columns.map((column) => h("td", { class: "number" }, value(column))),
              ),
            ),
          ),
        ),
      ),
      h("h3", {}, "Difference of the texts"),
      ...[difference].flat(),
    );
    byId("compare-result").hidden = false;
    announce("Both answers are there, with their difference below.");
  }
}

// One of the two: a model, and its answer.
class Column {
  constructor(name) {
    const id = `compare-model-${name.toLowerCase()}`;
    this.select = h("select", { id });
    this.body = h("div", { class: "compare-answer" });
    this.node = h(
      "section",
      { class: "compare-column", "aria-label": `${name} answer` },
      h("div", { class: "field" }, h("label", { for: id }, `${name} model`), this.select),
      this.body,
    );
    this.wanted = "";
    this.clear();
  }

  offer(models, index) {
    this.select.replaceChildren(...models.map(({ id }) => h("option", { value: id }, plain(id))));
    this.model = this.wanted || (models[index] ?? models[0])?.id;
  }

  get model() {
    return this.select.value || this.wanted;
  }

  // A model that is not listed can be asked all the same: it may be known to the backend alone.
  set model(name) {
    if (!name) return;
    this.wanted = name;
    if (![...this.select.options].some(({ value }) => value === name))
      this.select.append(h("option", { value: name }, plain(name)));
    this.select.value = name;
  }

  clear() {
    this.response = null;
    this.measures = {};
    this.select.disabled = false;
    this.body.replaceChildren();
  }

  // A response that is there already.
  show(response, measures) {
    this.model = response.model;
    this.select.disabled = true;
    this.response = response;
    this.measures = measures;
    const answer = new AnswerView();
    answer.draw(LiveResponse.of(response));
    this.body.replaceChildren(answer.node);
  }

  async run(request, signal) {
    this.clear();
    const [log, answer] = [new EventLog(), new AnswerView()];
    let live = new LiveResponse();
    const note = h("p", { class: "note pulse" }, "Waiting for the model…");
    this.body.replaceChildren(answer.node, note);
    try {
      const asked = await stream("responses", { method: "POST", body: request, signal });
      if (asked.response) live = LiveResponse.of(asked.response);
      const paint = () => answer.draw(live);
      for await (const batch of asked.batches) {
        for (const [raw, event] of batch) {
          log.add(raw, event);
          live.apply(event);
        }
        schedule(paint);
      }
      if (!live.ended)
        throw new ApiError("The connection broke while the answer was coming.", { code: "connection_lost" });
      log.end();
      this.response = live.response;
      this.measures = { ...log.measures(), ...(request.store ? await recorded(live.response.id) : {}) };
      if (live.error) this.body.append(failureView(new ApiError(live.error.message, live.error)));
      if (request.store && live.response.status !== "failed")
        this.body.append(
          h(
            "div",
            { class: "buttons" },
            h(
              "a",
              { class: "quiet", href: `#/talk/${live.response.id}` },
              icon("message-square"),
              "Continue with this",
            ),
          ),
        );
    } catch (error) {
      this.body.append(error.name === "AbortError" ? h("p", { class: "note" }, "Stopped.") : failureView(error));
    }
    answer.draw(live);
    note.remove();
  }
}
