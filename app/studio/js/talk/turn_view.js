// The view of a turn: question, streaming answer, actions and facts.

import { ApiError } from "../lib/api.js";
import { button, copyButton, h, icon } from "../lib/dom.js";
import { popupButton } from "../lib/popup.js";
import { count, plain } from "../lib/text.js";
import { AnswerView, textOf } from "../parts/answer.js";
import { sendsMessage } from "../parts/composer.js";
import { factsView } from "../parts/facts.js";
import { failureView } from "../parts/failure.js";
import { itemViews } from "../parts/items.js";
import { answersOf, withText, writtenText } from "./turn.js";

const SPEED_EVERY = 250; // ms between updates of the live speed

export class TurnView {
  /**
   * @param {import("./turn.js").Turn} turn
   * @param {any} acts callbacks: retry(turn, model), resend(turn, items), goOn(turn), fork(turn),
   *   edited(turn, text or null), inspect(turn), output(turn, item, text), approve(turn, item, yes), branch(turn, step), raise(turn), models()
   */
  constructor(turn, acts) {
    this.turn = turn;
    this.acts = acts;
    this.question = h("div", { class: "question" }, itemViews(turn.input));
    this.branches = h("div", { class: "branches", hidden: true });
    this.place = h("div", { class: "answer-place" });
    this.coming = h("span", { class: "note pulse" });
    this.foot = h("div", { class: "turn-foot" }, this.coming);
    this.node = h(
      "article",
      { class: "turn", "aria-label": `Turn ${turn.number}` },
      this.question,
      this.branches,
      this.place,
      this.foot,
    );
    this.live = null; // cache key of the current answer view
    this.#makeAnswer(false, new Map());
    if (turn.running) this.wait("Waiting for the model…");
  }

  /** Draw new content of the answer. */
  draw() {
    const { turn } = this;
    this.answer.draw(turn.live);
    if (turn.state === "streaming" && !this.notice) this.#tellSpeed();
  }

  /** Show a status in place of the actions. */
  wait(text) {
    this.notice = text;
    this.node.setAttribute("aria-busy", "true");
    this.coming.textContent = text;
    this.foot.replaceChildren(this.coming);
  }

  /** The stream has (re)started. */
  resumed() {
    this.notice = "";
    this.speedAt = 0;
  }

  #tellSpeed() {
    const now = performance.now();
    if (now - (this.speedAt ?? 0) < SPEED_EVERY) return;
    this.speedAt = now;
    const { log } = this.turn;
    const elapsed = log?.first ? (now - log.began - log.first) / 1000 : 0;
    const rate = elapsed > 0.5 ? ` ${count(Math.round(log.deltas / elapsed))} tokens/s` : "";
    this.coming.textContent = `Answering…${rate}`;
    if (!this.coming.isConnected) this.foot.replaceChildren(this.coming);
  }

  /**
   * Draw the actions and the outcome of a turn that is not running.
   * @param {{last: boolean, busy: boolean, next: any, before: any, branch: [number, number]}} place `next` and
   *   `before` are its neighbours; `branch` is [number, count] among its siblings
   */
  settle({ last, busy, next, before, branch }) {
    const { turn } = this;
    this.#numberBranch(branch, busy);
    if (turn.running) return;
    this.node.removeAttribute("aria-busy");
    const actions = turn.actions({ last, busy });
    this.#makeAnswer(actions.has("answer"), answersOf(next?.input ?? []));
    this.node.classList.toggle("last", last);
    this.foot.replaceChildren(...this.#outcome(actions), this.#buttons(actions, before));
  }

  // Calls and approval requests have controls only in the last turn; elsewhere they show their answer.
  #makeAnswer(live, answers) {
    const key = JSON.stringify([live, [...answers.keys()]]);
    if (key === this.live) return;
    const waits = this.turn.live.items.some((entry) =>
      ["function_call", "custom_tool_call", "mcp_approval_request"].includes(entry?.item.type),
    );
    if (this.live !== null && !waits) return;
    this.live = key;
    const { turn, acts } = this;
    this.answer = new AnswerView({
      answers,
      output: live ? (item, text) => acts.output(turn, item, text) : null,
      approve: live ? (item, yes) => acts.approve(turn, item, yes) : null,
    });
    for (const entry of turn.live.items) if (entry) entry.changed = true;
    this.answer.draw(turn.live);
    this.place.replaceChildren(this.answer.node);
  }

  /** Redraw the facts after the stored measures have been loaded. */
  measured(before) {
    this.foot.querySelector(".facts")?.replaceWith(this.#facts(before));
  }

  #facts(before) {
    const { turn } = this;
    return factsView(
      turn.response,
      turn.measures ?? turn.log?.measures() ?? {},
      before?.measures ? { model: before.response?.model, backend: before.measures.backend } : {},
    );
  }

  #outcome(actions) {
    const { turn, acts } = this;
    const { live, response } = turn;
    if (turn.state === "failed") {
      const given = live.error;
      const error =
        turn.failure ??
        (given
          ? new ApiError(given.message, { ...given, retryAfter: given.headers?.["Retry-After"] })
          : new ApiError("The answer ended without a result."));
      const retry = actions.has("retry")
        ? /** @type {[string, () => void]} */ (["Retry", () => acts.retry(turn)])
        : null;
      return [failureView(error, turn.requestId || error.requestId, retry)];
    }
    const goOn = actions.has("continue") ? button("Continue", () => acts.goOn(turn)) : null;
    if (turn.stopped) {
      const text = response?.background
        ? "Stopped."
        : "Stopped. This answer is not stored: the next message continues from the turn before it.";
      return [h("div", { class: "cut-off" }, h("span", { class: "note" }, text), goOn)];
    }
    if (response.status !== "incomplete") return [];
    const reason = response.incomplete_details?.reason;
    const limit = reason === "max_output_tokens";
    return [
      h(
        "div",
        { class: "cut-off" },
        h(
          "span",
          { class: "note warn" },
          limit
            ? "Stopped at the output limit."
            : reason === "content_filter"
              ? "Stopped by the provider's content filter."
              : `Incomplete: ${plain(reason ?? "unknown reason")}.`,
        ),
        goOn,
        limit && goOn ? button("Raise limit", () => acts.raise(turn)) : null,
      ),
    ];
  }

  #buttons(actions, before) {
    const { turn, acts } = this;
    const { response } = turn;
    const act = (name, label, symbol, onclick) =>
      actions.has(name)
        ? button(icon(symbol), onclick, { class: "quiet only", "aria-label": label, title: label })
        : null;
    const link = (name, label, symbol, href) =>
      actions.has(name) ? h("a", { class: "quiet only", href, "aria-label": label, title: label }, icon(symbol)) : null;
    // Beside Retry, or alone where the error card has Retry.
    const another =
      turn.state === "failed"
        ? { symbol: "sparkles", class: "quiet only" }
        : { symbol: "chevron-down", class: "quiet only narrow" };
    return h(
      "div",
      { class: "turn-line" },
      h(
        "div",
        { class: "turn-buttons" },
        actions.has("copy")
          ? copyButton(() => textOf(response ?? { output: turn.live.items.map(({ item }) => item) }), "Answer", "")
          : null,
        turn.state === "failed" ? null : act("retry", "Retry", "refresh-cw", () => acts.retry(turn)),
        actions.has("retry")
          ? popupButton({ label: "Ask another model", ...another }, () =>
              acts.models().map((model) => ({ text: plain(model), act: () => acts.retry(turn, model) })),
            )
          : null,
        act("edit", "Edit", "pencil", () => this.edit()),
        act("fork", "Fork here", "git-branch", () => acts.fork(turn)),
        act("inspect", "Inspect", "activity", () => acts.inspect(turn)),
        link("compare", "Compare", "columns-2", `#/compare/${response?.id}`),
        link("open", "Open in Responses", "scroll-text", `#/responses/${response?.id}`),
      ),
      turn.live.ended ? this.#facts(before) : null,
    );
  }

  #numberBranch([number, all], busy) {
    this.branches.hidden = all < 2;
    if (all < 2) return;
    const step = (label, symbol, by) =>
      button(icon(symbol), () => this.acts.branch(this.turn, by), {
        class: "quiet only",
        "aria-label": label,
        title: label,
        disabled: busy || number + by < 1 || number + by > all,
      });
    this.branches.replaceChildren(
      step("Previous branch", "chevron-left", -1),
      h("span", { class: "note" }, h("span", { class: "visually-hidden" }, "Branch "), `${number}/${all}`),
      step("Next branch", "chevron-right", 1),
    );
  }

  /**
   * Edit the question in place. Nothing changes until it is sent.
   * @param {string} [text] an unsent edit to continue with; the focus stays where it is
   */
  edit(text) {
    const { turn } = this;
    if (this.editing) return;
    const id = `edit-${turn.number}`;
    const value = text ?? writtenText(turn.input);
    const field = h("textarea", { id, class: "message-field", rows: 2, value, dir: "auto" });
    field.addEventListener("input", () => this.acts.edited(turn, field.value));
    const close = () => {
      this.acts.edited(turn, null);
      this.editing = null;
      form.replaceWith(this.question);
      this.node.querySelector('[aria-label="Edit"]')?.focus({ preventScroll: true });
    };
    const submit = () => {
      const items = withText(turn.input, field.value.trim());
      if (items.length && this.acts.resend(turn, items)) close();
      else field.focus();
    };
    const media = turn.input
      .map((item) =>
        Array.isArray(item.content)
          ? { ...item, content: item.content.filter(({ type }) => type !== "input_text") }
          : item,
      )
      .filter(({ content }) => Array.isArray(content) && content.length);
    const form = h(
      "form",
      { class: "composer edit", "aria-label": `Edit turn ${turn.number}` },
      itemViews(media),
      h("label", { for: id, class: "visually-hidden" }, "Edited message"),
      field,
      h("div", { class: "buttons" }, button("Cancel", close), h("button", { class: "primary" }, "Send")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.target === field && sendsMessage(event)) {
        event.preventDefault();
        submit();
      }
    });
    this.editing = close;
    this.question.replaceWith(form);
    if (text !== undefined) return;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

/** Describe a turn's outcome for screen readers. */
export function outcomeOf(turn) {
  if (turn.stopped) return "Stopped.";
  if (turn.state === "failed") return "The answer failed.";
  const { response } = turn;
  const calls = response.output.filter(
    ({ type }) => type === "function_call" || type === "mcp_approval_request",
  ).length;
  if (calls) return `The model is waiting for you: ${count(calls)} ${calls === 1 ? "call" : "calls"}.`;
  const words = textOf(response).split(/\s+/).filter(Boolean).length;
  return `The answer is complete: ${count(words)} ${words === 1 ? "word" : "words"}.`;
}
