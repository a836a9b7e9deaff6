// A response as its events build it up: its items, with what is new in each since it was last drawn.

const TERMINAL = new Set(["completed", "incomplete", "failed", "cancelled"]);

// Which field of an item or part a delta adds to. `part`: what holds the text, by the index that the event names.
const DELTAS = {
  "response.output_text.delta": { part: "content", index: "content_index", field: "text" },
  "response.refusal.delta": { part: "content", index: "content_index", field: "refusal" },
  "response.reasoning.delta": { part: "content", index: "content_index", field: "text", type: "reasoning_text" },
  "response.reasoning_text.delta": { part: "content", index: "content_index", field: "text", type: "reasoning_text" },
  "response.reasoning_summary_text.delta": {
    part: "summary",
    index: "summary_index",
    field: "text",
    type: "summary_text",
  },
  "response.function_call_arguments.delta": { field: "arguments" },
  "response.mcp_call_arguments.delta": { field: "arguments" },
  "response.custom_tool_call_input.delta": { field: "input" },
  "response.code_interpreter_call_code.delta": { field: "code" },
};

const PARTS = {
  "response.content_part.added": ["content", "content_index"],
  "response.content_part.done": ["content", "content_index"],
  "response.reasoning_summary_part.added": ["summary", "summary_index"],
  "response.reasoning_summary_part.done": ["summary", "summary_index"],
};

export class LiveResponse {
  constructor() {
    this.response = null;
    this.items = []; // by output_index: {item, done, images, changed}
    this.error = null;
    this.last = -1; // sequence number of the last event
  }

  get ended() {
    return TERMINAL.has(this.response?.status);
  }

  // A stored response.
  static of(response) {
    const live = new LiveResponse();
    live.#take(response);
    return live;
  }

  apply(event) {
    if (typeof event.sequence_number === "number") this.last = event.sequence_number;
    const delta = DELTAS[event.type];
    if (delta) {
      this.#grow(event, delta);
    } else if (event.type === "response.output_item.added") {
      this.items[event.output_index] = { item: event.item, done: false, images: [], changed: true };
    } else if (event.type === "response.output_item.done") {
      this.#entry(event.output_index, event.item);
    } else if (PARTS[event.type]) {
      const [name, index] = PARTS[event.type];
      const entry = this.items[event.output_index];
      if (entry) {
        (entry.item[name] ??= [])[event[index]] = event.part;
        entry.changed = true;
      }
    } else if (event.type === "response.output_text.annotation.added") {
      const part = this.items[event.output_index]?.item.content?.[event.content_index];
      if (part) (part.annotations ??= []).push(event.annotation);
    } else if (event.type === "response.image_generation_call.partial_image") {
      this.#change(event, (entry) => (entry.images[event.partial_image_index] = event.partial_image_b64));
    } else if (event.type === "error") {
      this.error = event.error ?? event;
    } else if (event.response && typeof event.response === "object") {
      this.#take(
        event.response,
        event.type === "response.created" || event.type === "response.in_progress" || event.type === "response.queued",
      );
    } else {
      this.#state(event);
    }
  }

  #take(response, begins = false) {
    const before = this.response;
    this.response = response;
    if (begins && before) return;
    for (const [index, item] of (response.output ?? []).entries()) this.#entry(index, item);
    if (response.error) this.error = { ...this.error, ...response.error }; // the event before it may tell when to retry
  }

  #entry(index, item) {
    const known = this.items[index];
    if (known?.done) return;
    this.items[index] = { item, done: true, images: known?.images ?? [], changed: true };
  }

  #change(event, change) {
    const entry = this.items[event.output_index];
    if (!entry) return;
    change(entry);
    entry.changed = true;
  }

  #grow(event, { part, index, field, type }) {
    this.#change(event, ({ item }) => {
      let target = item;
      if (part) {
        item[part] ??= [];
        target = item[part][event[index]] ??= { type: type ?? "output_text" };
      }
      target[field] = (target[field] ?? "") + event.delta;
    });
  }

  // `response.web_search_call.searching` and the like: the state of a hosted call.
  #state(event) {
    const state = /^response\.\w+_(?:call|tools)\.(\w+)$/.exec(event.type)?.[1];
    if (state && event.item_id) this.#change(event, ({ item }) => (item.status = state));
  }
}
