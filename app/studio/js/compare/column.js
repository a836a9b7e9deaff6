// One of the conversations that are compared: a model, its answers, and their figures at the head.

import { ApiError, stream } from "../lib/api.js";
import { button, h, icon, schedule } from "../lib/dom.js";
import { LiveResponse } from "../lib/live.js";
import { EventLog } from "../lib/log.js";
import { recorded } from "../lib/stored.js";
import { money } from "../lib/tables.js";
import { count, plain, seconds, speed } from "../lib/text.js";
import { AnswerView } from "../parts/answer.js";
import { differenceView } from "../parts/difference.js";
import { failureView } from "../parts/failure.js";

const ORDINALS = ["First", "Second", "Third", "Fourth", "Fifth", "Sixth"];

/** The figures at the head: a name, how a number is shown, and whether the greatest is the best; null: none is. */
/** @type {Record<string, [string, (value: number) => string, boolean | null]>} */
export const FIGURES = {
  first: ["First token", (value) => seconds(value * 1000), false],
  seconds: ["Total", (value) => seconds(value * 1000), false],
  speed: ["Tokens/s", (value) => (value < 100 ? value.toFixed(1) : count(Math.round(value))), true],
  input: ["Input", count, null],
  output: ["Output", count, null],
  cost: ["Cost", money, false],
};

export class Column {
  /**
   * @param {number} index
   * @param {object} on
   * @param {() => void} on.figures figures have changed
   * @param {(column: Column) => void} on.remove
   */
  constructor(index, on) {
    this.on = on;
    this.turns = []; // {response, text, cell, answer}
    this.figures = {};
    this.wanted = "";
    const id = `compare-model-${index}`;
    this.ordinal = ORDINALS[index];
    this.select = h("select", { id, on: { change: () => (this.wanted = this.select.value) } });
    this.list = h("dl", { class: "compare-figures" });
    this.note = h("p", { class: "note" });
    this.removal = button(icon("x"), () => this.on.remove(this), {
      class: "quiet only",
      "aria-label": `Remove column ${index + 1}`,
    });
    this.head = h(
      "div",
      { class: "compare-head" },
      h(
        "div",
        { class: "row" },
        h("label", { for: id, class: "visually-hidden" }, `${this.ordinal} model`),
        this.select,
        this.removal,
      ),
      this.list,
      this.note,
    );
    this.#draw([]);
  }

  offer(models, index) {
    this.select.replaceChildren(...models.map(({ id }) => h("option", { value: id }, plain(id))));
    this.model = this.wanted || (models[index] ?? models[0])?.id;
  }

  get model() {
    return this.select.value || this.wanted;
  }

  // A model that is not listed can be requested all the same: it may be known to the backend alone.
  set model(name) {
    if (!name) return;
    this.wanted = name;
    if (![...this.select.options].some(({ value }) => value === name))
      this.select.append(h("option", { value: name }, plain(name)));
    this.select.value = name;
  }

  clear() {
    this.turns = [];
    this.figures = {};
    this.select.disabled = false;
    this.note.textContent = "";
    this.#draw([]);
  }

  /** The id of the last response, if it is stored and ended. */
  get last() {
    const { response } = this.turns.at(-1) ?? {};
    return response?.store && response.status !== "failed" ? response.id : null;
  }

  // A cell for the answer to the next question.
  cell() {
    const body = h("div", { class: "compare-answer" });
    const cell = h("section", { class: "compare-cell", "aria-label": `${this.ordinal} answer` }, body);
    const turn = { cell, body, response: null, text: "" };
    this.turns.push(turn);
    return turn;
  }

  /** A response that exists already. */
  show(response, measures) {
    const turn = this.cell();
    const answer = new AnswerView();
    answer.draw(LiveResponse.of(response));
    turn.body.append(answer.node);
    this.model = response.model;
    this.#ended(turn, response, measures ?? {});
    return turn;
  }

  /** What precedes the next question: the response to continue from, or all items if nothing is stored. */
  context() {
    const last = this.turns.at(-1);
    if (!last) return {};
    return this.last
      ? { previous_response_id: this.last }
      : { earlier: this.turns.flatMap(({ input, response }) => [...(input ?? []), ...(response?.output ?? [])]) };
  }

  /** Send a request; the answer and its figures are drawn as they come. */
  async run(turn, request, signal) {
    const [log, answer] = [new EventLog(), new AnswerView()];
    const note = h("p", { class: "note pulse" }, "Waiting for the model…");
    let live = new LiveResponse();
    turn.body.replaceChildren(answer.node, note);
    turn.input = request.input;
    this.figures = {};
    this.note.textContent = "";
    const paint = () => {
      answer.draw(live);
      if (!turn.response) this.#live(log);
    };
    const clock = setInterval(() => schedule(paint), 200);
    try {
      const asked = await stream("responses", { method: "POST", body: request, signal });
      if (asked.response) live = LiveResponse.of(asked.response);
      for await (const batch of asked.batches) {
        for (const [raw, event] of batch) {
          log.add(raw, event);
          live.apply(event);
        }
        schedule(paint);
      }
      if (!live.ended)
        throw new ApiError("The connection was lost before the answer ended.", { code: "connection_lost" });
      log.end();
      this.#ended(turn, live.response, {
        ...log.measures(),
        ...(request.store ? await recorded(live.response.id) : {}),
      });
      if (live.error) turn.body.append(failureView(new ApiError(live.error.message, live.error)));
      if (this.last)
        turn.cell.append(
          h(
            "div",
            { class: "buttons" },
            h("a", { class: "quiet", href: `#/talk/${this.last}` }, icon("message-square"), "Continue in Talk"),
          ),
        );
    } catch (error) {
      turn.body.append(error.name === "AbortError" ? h("p", { class: "note" }, "Stopped.") : failureView(error));
    } finally {
      clearInterval(clock);
      answer.draw(live);
      note.remove();
    }
  }

  // What can be told while the answer comes: a delta is about a token.
  #live(log) {
    const now = performance.now() - log.began;
    const rate = log.first !== null && now - log.first > 300 ? (log.deltas / (now - log.first)) * 1000 : null;
    this.figures = {
      first: log.first === null ? null : log.first / 1000,
      seconds: now / 1000,
      speed: rate,
      output: log.deltas || null,
    };
    this.running = true;
    this.on.figures();
  }

  #ended(turn, response, measures) {
    turn.response = response;
    turn.text = response.output
      .flatMap((item) => item.content ?? [])
      .map((part) => part.text ?? part.refusal ?? "")
      .filter(Boolean)
      .join("\n\n");
    const { usage } = response;
    this.running = false;
    const rate = speed(usage?.output_tokens, measures);
    this.figures = {
      first: measures.first_token_seconds ?? null,
      seconds: measures.seconds ?? null,
      speed: rate === null ? null : Number(String(rate).replaceAll(",", "")),
      input: usage?.input_tokens ?? null,
      output: usage?.output_tokens ?? null,
      cost: measures.cost ?? null,
    };
    this.note.textContent = [
      measures.backend ? plain(measures.backend) : "",
      response.status === "completed" ? "" : response.status,
    ]
      .filter(Boolean)
      .join(" · ");
    this.on.figures();
  }

  /** Draw the figures; `leads` has the names of those in which this column is the best. */
  #draw(leads) {
    this.list.replaceChildren(
      ...Object.entries(FIGURES).map(([name, [text, show]]) => {
        const value = this.figures[name];
        const known = typeof value === "number";
        return h(
          "div",
          { class: leads.includes(name) ? "best" : null },
          h("dt", {}, text),
          h(
            "dd",
            {},
            known ? show(value) : "–",
            leads.includes(name) ? h("span", { class: "visually-hidden" }, ", the best") : null,
          ),
        );
      }),
    );
  }

  mark(leads) {
    this.#draw(leads);
  }

  /** Show the text of a turn as its difference to another text; null for the answer itself. */
  async compareWith(turn, text) {
    turn.difference?.remove();
    turn.difference = null;
    turn.body.hidden = false;
    if (text === null || !turn.response) return;
    const made = h("div", { class: "compare-difference" }, await differenceView(text, turn.text));
    turn.difference?.remove();
    turn.difference = made;
    turn.body.hidden = true;
    turn.body.after(made);
  }
}
