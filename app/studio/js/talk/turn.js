// One turn of a conversation: a request, its answer as far as it has come, and what can be done with it.

import { LiveResponse } from "../lib/live.js";

/** @typedef {"waiting" | "streaming" | "ended" | "failed" | "stopped"} TurnState */

const CALLS = ["function_call", "custom_tool_call"];

export class Turn {
  /**
   * @param {any} request the body that was sent, or that a stored response tells of
   * @param {any[]} input the items of this turn, without any history that the request repeats
   */
  constructor(request, input = request.input) {
    this.request = request;
    this.input = input;
    this.number = 0; // its place in the conversation, from 1
    this.live = new LiveResponse();
    this.running = true;
    this.stopped = false;
    this.failure = null; // an ApiError, if the request itself failed
    this.outputs = []; // results of function calls, until all calls have one
    this.measures = null; // times in seconds, cost and backend, as the server stores them
    this.log = null; // the EventLog of a stream of this page
    this.warnings = "";
    this.requestId = "";
    this.asked = Date.now() / 1000; // Unix time
    this.others = []; // turns that stood here before an edit or a retry: lists of turns, each with its successors
  }

  /** A turn of a stored conversation. */
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

  /** The next turn can continue from this one. */
  get continuable() {
    return !this.running && this.live.ended && this.response.status !== "failed";
  }

  /** The server stores this turn, so that it can be opened again. */
  get stored() {
    return Boolean(this.live.ended && this.response.store);
  }

  /** The calls that wait for a result from the person. */
  get calls() {
    return (this.response?.output ?? []).filter(({ type }) => CALLS.includes(type));
  }

  /** The model's answer was cut off, and the model can write on. */
  get cut() {
    return (
      this.continuable &&
      this.response.status !== "completed" &&
      this.response.incomplete_details?.reason !== "content_filter"
    );
  }

  /** The message that a person wrote, if this turn has one: results of calls cannot be edited. */
  get editable() {
    return this.input.some((item) => (item.type ?? "message") === "message" && item.role === "user");
  }

  /**
   * What a person can do with this turn. `last` is true for the last turn, `busy` while an answer is coming.
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
 * The request of the turn after `turns`. It continues the last turn that can be continued: by its id, or by its items
 * if the server has not stored it.
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

/** The items of a turn with another text for its message; attached images and files stay. */
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

/** The text of a person's message in the items of a turn. */
export function writtenText(items) {
  return items
    .filter(({ role }) => role === "user")
    .flatMap(({ content }) => (typeof content === "string" ? [content] : content.map(({ text }) => text)))
    .filter(Boolean)
    .join("\n");
}

/** How earlier turns answered the calls and approval requests of an answer: {id of the call or request: item}. */
export function answersOf(items) {
  return new Map(items.map((item) => [item.approval_request_id ?? item.call_id, item]).filter(([id]) => id));
}
