// A turn: a request, its (partial) response, and the available actions.

import { LiveResponse } from "../lib/live.js";

/** @typedef {"waiting" | "streaming" | "ended" | "failed" | "stopped"} TurnState */

const CALLS = ["function_call", "custom_tool_call"];

export class Turn {
  /**
   * @param {any} request the request body, sent or restored from a stored response
   * @param {any[]} input the turn's own items, without repeated history
   */
  constructor(request, input = request.input) {
    this.request = request;
    this.input = input;
    this.number = 0; // position in the conversation, from 1
    this.live = new LiveResponse();
    this.running = true;
    this.stopped = false;
    this.failure = null; // an ApiError, if the request itself failed
    this.outputs = []; // results of function calls, sent once complete
    this.measures = null; // stored measures: seconds, first_token_seconds, cost, backend
    this.log = null; // EventLog of the stream in this page
    this.warnings = "";
    this.requestId = "";
    this.asked = Date.now() / 1000; // Unix time
    this.others = []; // sibling branches in memory: lists of turns
  }

  /** Create a turn from an entry of /v1/antiphon/responses/{id}/chain. */
  static stored({ response, input, measures }, request) {
    const turn = new Turn(request, input);
    turn.live = LiveResponse.of(response);
    turn.running = !turn.live.ended;
    turn.stopped = response.status === "cancelled";
    turn.measures = measures ?? {};
    turn.asked = response.created_at;
    return turn;
  }

  get response() {
    return this.live.response;
  }

  /** @returns {TurnState} */
  get state() {
    if (this.running) return this.live.items.length ? "streaming" : "waiting";
    if (this.stopped) return "stopped";
    if (this.failure || !this.live.ended || this.response.status === "failed") return "failed";
    return "ended";
  }

  /** Whether the next turn can continue from this one. */
  get continuable() {
    return !this.running && this.live.ended && this.response.status !== "failed";
  }

  /** Whether the server has stored this turn. */
  get stored() {
    return Boolean(this.live.ended && this.response.store);
  }

  /** Function and custom tool calls of the response. */
  get calls() {
    return (this.response?.output ?? []).filter(({ type }) => CALLS.includes(type));
  }

  /** Whether the answer is incomplete and can be continued. */
  get cut() {
    return (
      this.continuable &&
      this.response.status !== "completed" &&
      this.response.incomplete_details?.reason !== "content_filter"
    );
  }

  /** Whether the input has a user message. Results of calls cannot be edited. */
  get editable() {
    return this.input.some((item) => (item.type ?? "message") === "message" && item.role === "user");
  }

  /**
   * Return the available actions. `last`: this is the last turn; `busy`: a response is running.
   * @returns {Set<string>}
   */
  actions({ last, busy }) {
    const offered = new Set(["inspect"]);
    if (this.running) return offered;
    if (this.live.items.length) offered.add("copy");
    if (!busy) {
      offered.add("retry");
      if (this.editable) offered.add("edit");
      if (last && this.cut) offered.add("continue");
      if (last && this.state === "ended") offered.add("answer");
      if (!last && this.continuable) offered.add("fork");
    }
    if (this.stored) offered.add("open").add("compare");
    return offered;
  }

  /** Add the result of a call; returns the input items for the next turn once every call has its result, else null. */
  give(call, output) {
    const type = call.type === "custom_tool_call" ? "custom_tool_call_output" : "function_call_output";
    const given = { type, call_id: call.call_id, output };
    this.outputs = [...this.outputs.filter(({ call_id }) => call_id !== call.call_id), given];
    return this.outputs.length >= this.calls.length ? this.outputs : null;
  }
}

/**
 * Build the request that follows `turns`. It continues the last continuable turn by its id, or repeats the items of
 * turns that are not stored.
 */
export function nextRequest(turns, parameters, items) {
  const last = turns.findLast((turn) => turn.continuable);
  const request = { ...parameters, stream: true };
  if (!last) return { ...request, input: items };
  if (last.stored) return { ...request, previous_response_id: last.response.id, input: items };
  const from = turns.findLastIndex((turn) => turn.request.previous_response_id);
  const earlier = from < 0 ? {} : { previous_response_id: turns[from].request.previous_response_id };
  const history = turns
    .slice(Math.max(0, from))
    .filter((turn) => turn.continuable)
    .flatMap((turn) => [...turn.input, ...turn.response.output]);
  return { ...request, ...earlier, input: [...history, ...items] };
}

/** Replace the text of a turn's message; attachments stay. */
export function withText(items, text) {
  let written = false;
  const edited = items.map((item) => {
    if ((item.type ?? "message") !== "message" || item.role !== "user") return item;
    const parts = typeof item.content === "string" ? [] : item.content.filter(({ type }) => type !== "input_text");
    if (!written && text) parts.push({ type: "input_text", text });
    written = true;
    return { type: "message", role: "user", content: parts };
  });
  return edited.filter((item) => item.content === undefined || item.content.length);
}

/** The text of the user messages among items. */
export function writtenText(items) {
  return items
    .filter(({ role }) => role === "user")
    .flatMap(({ content }) => (typeof content === "string" ? [content] : content.map(({ text }) => text)))
    .filter(Boolean)
    .join("\n");
}

/** Map call ids and approval request ids to the items that answer them. */
export function answersOf(items) {
  return new Map(items.map((item) => [item.approval_request_id ?? item.call_id, item]).filter(([id]) => id));
}
