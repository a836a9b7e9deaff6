// Talk to a model: turns, one after another, each with its stream.

import { Conversations, chainOf } from "./conversations.js";
import { ApiError, getJson, send, stream } from "./lib/api.js";
import { askForKey } from "./lib/dialog.js";
import { announce, button, byId, copyButton, h, icon, schedule } from "./lib/dom.js";
import { advice } from "./lib/errors.js";
import { LiveResponse } from "./lib/live.js";
import { EventLog } from "./lib/log.js";
import { recorded, requestOf } from "./lib/stored.js";
import { many, plain } from "./lib/text.js";
import { AnswerView, textOf } from "./parts/answer.js";
import { Composer } from "./parts/composer.js";
import { factsView } from "./parts/facts.js";
import { Inspector } from "./parts/inspector.js";
import { itemViews } from "./parts/items.js";
import { Options } from "./parts/options.js";

const PANELS = { options: "options-button", inspector: "inspect" }; // each with the button that opens it
const RUNNING = new Set(["queued", "in_progress"]);
const RESUMES = 5; // how often a background response is followed again after the connection broke

export class Talk {
  // `onmodel` is called with the model of a conversation that is opened.
  constructor({ onmodel }) {
    this.onmodel = onmodel;
    this.turns = [];
    this.running = null; // {turn, abort}
    this.inspector = new Inspector();
    this.composer = new Composer({
      onsend: () => (this.running ? null : this.#sendWritten()),
      onpreview: () => this.#preview(),
    });
    this.options = new Options({
      onwrong: (field) => this.#showOption(field),
      onopen: (field) => this.#showOption(field),
    });
    this.list = byId("turns");
    this.scroller = byId("conversation");
    byId("stop").addEventListener("click", () => this.stop());
    byId("new").addEventListener("click", () => this.#begin());
    for (const [panel, opener] of Object.entries(PANELS)) {
      byId(opener).addEventListener("click", () =>
        byId("talk").dataset.panel === panel ? this.closePanel() : this.openPanel(panel),
      );
      byId(`${panel}-close`).addEventListener("click", () => this.closePanel());
    }
    this.address = ""; // the id of the response that the thread ends with, as the page's address names it
    this.conversations = new Conversations({ ondelete: (chain) => chain === chainOf(this.address) && this.#begin() });
    this.#watchScroll();
  }

  // The view is shown, maybe with the conversation up to a response.
  show(id) {
    this.visible = true;
    this.conversations.show();
    if (id && id !== this.address) this.#open(id);
    else if (this.address) this.#setAddress(this.address); // the conversation that was left for another view
  }

  hide() {
    this.visible = false;
    this.conversations.hide();
  }

  // The address of the page is that of the conversation, so that it can be opened again, also in another tab.
  #setAddress(id) {
    this.address = id;
    const hash = id ? `#/talk/${id}` : "#/talk";
    document.querySelector('#nav [data-view="talk"]').setAttribute("href", hash);
    if (this.visible && location.hash !== hash) history.replaceState(null, "", hash);
    this.conversations.mark(id);
  }

  // Open one of the panels beside the thread, in place of the other.
  openPanel(panel) {
    this.#setPanel(panel);
    byId(`${panel}-title`).focus({ preventScroll: true });
  }

  closePanel() {
    const opener = PANELS[byId("talk").dataset.panel];
    this.#setPanel("");
    byId(opener).focus({ preventScroll: true });
  }

  #setPanel(panel) {
    byId("talk").dataset.panel = panel;
    for (const [each, opener] of Object.entries(PANELS)) byId(opener).setAttribute("aria-expanded", each === panel);
    this.inspector.timeline.update();
  }

  #showOption(field) {
    this.#setPanel("options");
    field.focus();
  }

  // Forget what is shown: there is another key.
  reset() {
    this.#clear();
    this.address = "";
    this.conversations.reset();
    this.conversations.refresh();
  }

  #begin() {
    this.#clear();
    this.#setAddress("");
    this.composer.focus();
    const kept = this.options.set().map(({ text }) => text);
    byId("welcome-kept").hidden = !kept.length;
    byId("welcome-kept-names").textContent = kept.join(", ");
    announce(kept.length ? `New conversation. It keeps: ${kept.join(", ")}.` : "New conversation.");
  }

  #clear() {
    this.#leave();
    this.turns = [];
    this.list.replaceChildren();
    byId("welcome").hidden = false;
    this.inspector.show(null);
    this.#complain("");
  }

  // Open the conversation up to a stored response, which may still run.
  async #open(id) {
    this.#clear();
    this.#setAddress(id);
    byId("welcome").hidden = true;
    this.list.replaceChildren(h("p", { class: "note pulse" }, "Opening the conversation…"));
    try {
      const { data } = await getJson(`antiphon/responses/${encodeURIComponent(id)}/chain`);
      if (this.address === id) this.#continueFrom(data);
    } catch (error) {
      if (this.address !== id) return;
      askForKey(error);
      this.list.replaceChildren(
        h(
          "div",
          { class: "missing" },
          h("h2", {}, "This conversation cannot be opened"),
          failureView(error),
          error.status === 404
            ? h("p", { class: "note" }, "It may have been deleted, have expired, or belong to another key.")
            : null,
        ),
      );
    }
  }

  // Show stored turns, [{response, input}], oldest first, to go on from the last.
  #continueFrom(chain) {
    this.list.replaceChildren();
    for (const stored of chain) {
      const turn = this.#add(requestOf(stored), stored.input);
      if (RUNNING.has(stored.response.status)) {
        this.#attend(turn, stored.response.id, (signal) =>
          stream(`responses/${stored.response.id}?stream=true`, { signal }),
        );
        continue;
      }
      turn.live = LiveResponse.of(stored.response);
      turn.log = null;
      turn.measures = stored.measures ?? {};
      this.#draw(turn);
      this.#end(turn);
    }
    this.onmodel(chain.at(-1).response.model);
    this.inspector.show(this.turns.at(-1));
    this.pinned = true;
    this.#follow();
    this.composer.focus();
  }

  // Do not wait for the answer that comes; a background response goes on.
  #leave() {
    this.running?.abort.abort();
    this.running = null;
    this.#busy(false);
  }

  async stop() {
    const { running } = this;
    if (!running) return;
    running.stopped = true;
    if (running.id) {
      // Its stream ends by itself, as cancelled.
      await send("POST", `responses/${running.id}/cancel`, {}).catch(() => running.abort.abort());
    } else {
      running.abort.abort();
    }
  }

  // Send a prompt with other parameters than those of the form: what the suggestions do.
  try({ prompt, parameters = {} }) {
    const input = [{ type: "message", role: "user", content: [{ type: "input_text", text: prompt }] }];
    this.#sendItems(input, parameters);
  }

  #sendWritten() {
    const items = this.composer.items();
    if (!items.length) {
      this.#complain("Write something first.");
      return;
    }
    if (this.#sendItems(items)) this.composer.clear();
  }

  #sendItems(items, parameters = {}) {
    this.#complain("");
    try {
      this.#run(this.#continued({ ...this.options.parameters(), ...parameters }, items));
      return true;
    } catch (error) {
      this.#complain(error.message);
      return false;
    }
  }

  #preview() {
    this.#complain("");
    try {
      const items = this.composer.items();
      this.inspector.preview(this.#continued(this.options.parameters(), items));
      this.openPanel("inspector");
    } catch (error) {
      this.#complain(error.message);
    }
  }

  // The request of the next turn: it continues the last one that is there to be continued from.
  #continued(parameters, items) {
    const last = this.turns.findLast((turn) => turn.live.ended && turn.live.response.status !== "failed");
    const whole = { ...parameters, stream: true };
    if (!last) return { ...whole, input: items };
    if (last.live.response.store) return { ...whole, previous_response_id: last.live.response.id, input: items };
    // It is not stored, so the client has the history, and sends it.
    const from = this.turns.findLastIndex((turn) => turn.request.previous_response_id);
    const earlier = from < 0 ? {} : { previous_response_id: this.turns[from].request.previous_response_id };
    const history = this.turns
      .slice(Math.max(0, from))
      .filter((turn) => turn.live.ended)
      .flatMap((turn) => [...turn.own, ...turn.live.response.output]);
    return { ...whole, ...earlier, input: [...history, ...items] };
  }

  #add(request, own = request.input) {
    const number = this.turns.length + 1;
    const turn = { request, own, number, live: new LiveResponse(), log: new EventLog(), warnings: "", requestId: "" };
    turn.answer = new AnswerView({
      output: (item, text) => this.#giveOutput(turn, item, text),
      approve: (item, yes) =>
        this.#sendItems(
          [{ type: "mcp_approval_response", approval_request_id: item.id, approve: yes }],
          again(turn.request),
        ),
    });
    turn.coming = h("span", { class: "note pulse" }, "Answering…");
    turn.foot = h("div", { class: "turn-foot" });
    const given = h("div", { class: "question" }, itemViews(own));
    turn.node = h("article", { class: "turn", "aria-label": `Turn ${number}` }, given, turn.answer.node, turn.foot);
    this.turns.push(turn);
    this.list.append(turn.node);
    return turn;
  }

  async #run(request) {
    const last = this.turns.findLast((turn) => turn.live.ended);
    const own = last && !last.live.response.store ? request.input.slice(-1) : request.input;
    byId("welcome").hidden = true;
    const turn = this.#add(request, own);
    return this.#attend(turn, null, (signal) => stream("responses", { method: "POST", body: request, signal }));
  }

  // Wait for the answer of a turn, whose stream `ask(signal)` opens; `id` is that of a background response that runs.
  async #attend(turn, id, ask) {
    const running = (this.running = { turn, id, abort: new AbortController(), stopped: false });
    this.#busy(true);
    turn.node.setAttribute("aria-busy", "true");
    turn.foot.replaceChildren(h("span", { class: "note pulse" }, "Waiting for the model…"));
    this.pinned = true;
    this.#follow();
    this.inspector.show(turn);
    announce("The answer is coming.");
    try {
      const answer = await ask(running.abort.signal);
      turn.warnings = answer.warnings;
      turn.requestId = answer.requestId;
      if (answer.response) turn.live = LiveResponse.of(answer.response);
      await this.#read(running, answer.batches);
    } catch (error) {
      const resumed = error.code === "connection_lost" && running.id && (await this.#resume(running));
      if (!resumed) this.#failed(turn, error, running);
    }
    if (this.running !== running) return; // the conversation was left
    this.running = null;
    turn.log.end();
    this.#drawAll(turn);
    this.#end(turn);
    this.#follow();
    turn.node.removeAttribute("aria-busy");
    this.#busy(false);
    const { response } = turn.live;
    if (turn.live.ended && response.store) {
      this.#setAddress(response.id);
      this.#measure(turn);
    }
    this.conversations.refresh();
    announce(outcome(turn));
  }

  // Add to the line under an answer what its stream does not tell.
  async #measure(turn) {
    turn.measures = { ...turn.log.measures(), ...(await recorded(turn.live.response.id)) };
    turn.foot.querySelector(".facts")?.replaceWith(factsView(turn.live.response, turn.measures));
  }

  async #read(running, batches) {
    const { turn } = running;
    for await (const batch of batches) {
      for (const [raw, event] of batch) {
        turn.log.add(raw, event);
        turn.live.apply(event);
      }
      const { response } = turn.live;
      if (response?.background && running.id !== response.id && this.running === running) {
        running.id = response.id;
        this.#setAddress(response.id);
        this.conversations.refresh();
      }
      schedule((turn.paint ??= () => this.#drawAll(turn)));
    }
    if (!turn.live.ended)
      throw new ApiError("The connection broke while the answer was coming.", { code: "connection_lost" });
  }

  // Follow a background response from where the stream broke.
  async #resume(running) {
    const { turn, id } = running;
    for (let attempt = 0; attempt < RESUMES && !running.stopped; attempt++) {
      try {
        const answer = await stream(`responses/${id}?stream=true&starting_after=${turn.live.last}`, {
          signal: running.abort.signal,
        });
        await this.#read(running, answer.batches);
        return true;
      } catch (error) {
        if (!["connection_lost", "connection_failed"].includes(error.code)) return false;
        await new Promise((done) => setTimeout(done, 500 * 2 ** attempt));
      }
    }
    return false;
  }

  #failed(turn, error, running) {
    if (error.name === "AbortError" || running.stopped) {
      turn.stopped = true;
    } else {
      turn.failure = error instanceof ApiError ? error : new ApiError(error.message);
      askForKey(turn.failure);
    }
  }

  #drawAll(turn) {
    this.#draw(turn);
    this.inspector.update(turn);
    this.#follow();
  }

  #draw(turn) {
    turn.answer.draw(turn.live);
    if (!turn.live.ended && turn.live.items.length) turn.foot.replaceChildren(turn.coming);
  }

  // A call's output; the next turn begins when all calls of this one have theirs.
  #giveOutput(turn, item, output) {
    const type = item.type === "custom_tool_call" ? "custom_tool_call_output" : "function_call_output";
    (turn.outputs ??= []).push({ type, call_id: item.call_id, output });
    const calls = turn.live.response.output.filter((each) => ["function_call", "custom_tool_call"].includes(each.type));
    if (turn.outputs.length === calls.length) this.#sendItems(turn.outputs, again(turn.request));
    else announce(`${calls.length - turn.outputs.length} more to give.`);
  }

  #end(turn) {
    const { live, failure, stopped } = turn;
    const { response } = live;
    const foot = [];
    const error =
      failure ?? (response?.status === "failed" && live.error ? new ApiError(live.error.message, live.error) : null);
    if (error) foot.push(failureView(error, turn.requestId || error.requestId));
    else if (stopped && !response?.background)
      foot.push(
        h(
          "p",
          { class: "note" },
          "Stopped. Nothing of this answer is stored; the next message continues from the turn before it.",
        ),
      );
    else if (response?.status === "incomplete") foot.push(h("p", { class: "note warn" }, incomplete(response)));
    const usable = live.ended && response.status !== "failed";
    foot.push(
      h(
        "div",
        { class: "buttons" },
        usable ? copyButton(() => textOf(response), "Answer", "Copy") : null,
        button([icon("refresh-cw"), "Retry"], () => this.#retry(turn), { class: "quiet" }),
        button([icon("pencil"), "Edit"], () => this.#edit(turn), { class: "quiet" }),
        usable && turn !== this.turns.at(-1)
          ? button([icon("git-branch"), "Fork here"], () => this.#fork(turn), { class: "quiet" })
          : null,
        button(
          [icon("activity"), "Inspect"],
          () => {
            this.inspector.show(turn);
            this.openPanel("inspector");
          },
          { class: "quiet" },
        ),
        live.ended && response.store
          ? h("a", { class: "quiet", href: `#/compare/${response.id}` }, icon("columns-2"), "Compare")
          : null,
        usable && response.store
          ? h("a", { class: "quiet", href: `#/responses/${response.id}` }, icon("scroll-text"), "Open")
          : null,
      ),
    );
    if (live.ended) foot.push(factsView(response, turn.measures ?? turn.log?.measures() ?? {}));
    turn.foot.replaceChildren(...foot);
    const before = this.turns[this.turns.indexOf(turn) - 1];
    if (before && !before.refreshed) {
      before.refreshed = true;
      this.#end(before); // which is not the last any more, and can be forked from
    }
  }

  #cutAt(turn) {
    const index = this.turns.indexOf(turn);
    for (const each of this.turns.splice(index)) each.node.remove();
    byId("welcome").hidden = this.turns.length > 0;
    const last = this.turns.at(-1);
    if (last) last.refreshed = false;
    this.inspector.show(last ?? null);
    this.#setAddress(this.turns.findLast(({ live }) => live.ended && live.response.store)?.live.response.id ?? "");
  }

  #retry(turn) {
    if (this.running) return;
    this.#cutAt(turn);
    this.#run({ ...turn.request, stream: true });
  }

  #edit(turn) {
    if (this.running) return;
    this.#cutAt(turn);
    this.composer.restore(turn.own);
    announce("The message is in the form, to be changed. What came after it stays under Responses.");
  }

  #fork(turn) {
    if (this.running) return;
    const next = this.turns[this.turns.indexOf(turn) + 1];
    if (next) this.#cutAt(next);
    this.#end(turn);
    this.composer.focus();
    announce(`The conversation goes on from turn ${turn.number}. The other branch stays under Responses.`);
  }

  #busy(busy) {
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    if (!busy && (document.activeElement === document.body || document.activeElement === byId("stop")))
      this.composer.focus();
  }

  #complain(message) {
    byId("composer-problem").textContent = message;
  }

  // Stay at the end while the answer grows, unless the reader has scrolled up.
  #follow() {
    if (this.pinned) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #watchScroll() {
    this.scroller.addEventListener(
      "scroll",
      () => {
        const { scrollTop, clientHeight, scrollHeight } = this.scroller;
        this.pinned = scrollTop + clientHeight >= scrollHeight - 40;
      },
      { passive: true },
    );
  }
}

// What a turn that answers a call is asked with: the same, but for what belongs to one turn.
function again(request) {
  const { input, previous_response_id, stream: _, tool_choice, ...rest } = request;
  return rest;
}

function outcome(turn) {
  if (turn.stopped) return "Stopped.";
  const { response } = turn.live;
  if (turn.failure || response?.status === "failed") return "The answer failed.";
  const calls = response?.output.filter(
    (item) => item.type === "function_call" || item.type === "mcp_approval_request",
  ).length;
  if (calls) return `The model waits for you: ${many(calls, "call")}.`;
  const words = response ? textOf(response).split(/\s+/).filter(Boolean).length : 0;
  return `The answer is complete: ${many(words, "word")}.`;
}

function incomplete({ incomplete_details: details }) {
  const reason = details?.reason;
  if (reason === "max_output_tokens") return "Cut off: it reached the limit of output tokens. Raise it under Options.";
  if (reason === "content_filter") return "Cut off by the provider's content filter.";
  return reason ? `Incomplete: ${plain(reason)}.` : "Cancelled.";
}

export function failureView(error, requestId = error.requestId) {
  const details = [
    ["Type", error.type],
    ["Code", error.code],
    ["Parameter", error.param],
    ["Status", error.status || ""],
    ["Request", requestId],
  ];
  return h(
    "div",
    { class: "failure", role: "group", "aria-label": "Error" },
    h("p", {}, h("b", {}, plain(error.message))),
    h("p", {}, advice(error)),
    h(
      "dl",
      { class: "fields" },
      details.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, plain(value))]),
    ),
  );
}
