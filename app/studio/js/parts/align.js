// The client's request and the backend's request as pairs: which parts of one became which parts of the other. No DOM.

/**
 * @typedef {{path: string, value: any}} Part a part of a request, such as `input[0]`
 * @typedef {Object} Pair
 * @property {"same" | "renamed" | "translated" | "earlier" | "here" | "dropped" | "added"} kind
 * @property {Part[]} left of the client's request
 * @property {Part[]} right of the backend's request
 * @property {string[]} notes why
 */

const CHAT = {
  name: "Chat Completions",
  messages: "messages",
  places: {
    text: ["response_format", "verbosity"],
    reasoning: ["reasoning_effort", "reasoning", "thinking", "chat_template_kwargs", "enable_thinking"],
    max_output_tokens: ["max_completion_tokens", "max_tokens"],
    top_logprobs: ["top_logprobs", "logprobs"],
    safety_identifier: ["safety_identifier", "user"],
  },
};
const MESSAGES = {
  name: "Messages",
  messages: "messages",
  places: {
    ...CHAT.places,
    text: ["output_config"],
    reasoning: ["thinking", "output_config"],
    max_output_tokens: ["max_tokens"],
    user: ["metadata"],
  },
};
const RESPONSES = { name: "Responses", messages: "input", places: {} };

/** The API of a backend's URL. */
export const apiOf = (url) => (url?.endsWith("/responses") ? RESPONSES : url?.endsWith("/messages") ? MESSAGES : CHAT);

// What this server does with a field itself.
const HERE = {
  store: "Antiphon stores the response.",
  background: "Antiphon runs the response in the background.",
  include: "Antiphon adds this to its own response.",
  metadata: "Antiphon stores this with the response.",
  truncation: "Antiphon shortens the conversation if the backend rejects it as too long.",
  max_tool_calls: "Antiphon counts the calls of the tools that it runs.",
  previous_response_id: "Antiphon loads the earlier turns.",
  conversation: "Antiphon loads the items of the conversation.",
  prompt: "Antiphon fills in the template.",
  prompt_cache_key: "Antiphon uses this to choose a server.",
  stream: "Antiphon always streams from the backend.",
  context_management: "Antiphon compacts the conversation.",
};
const ADDED = {
  stream: "Antiphon always streams from the backend.",
  stream_options: "Requests the token counts.",
  store: "Antiphon stores the response, not the backend.",
  max_tokens: "The backend requires a limit.",
  logprobs: "Needed for top_logprobs.",
  include: "Needed to rebuild the items.",
  messages: "",
};

/**
 * Pair the parts of two requests.
 * @param {Record<string, any>} request as the client sent it
 * @param {{url: string | null, body: Record<string, any>, warnings: string[]}} translation
 * @returns {{pairs: Pair[], warnings: string[]}} the warnings that belong to no pair
 */
export function align(request, { url, body, warnings }) {
  const api = apiOf(url);
  const left = { ...request };
  const right = { ...body };
  const reasons = new Reasons(warnings);
  /** @type {Pair[]} */
  const pairs = [];
  const take = (name, other = name) => {
    if (name in left && other in right) pairs.push(compared([part(left, name)], [part(right, other)]));
    delete left[name];
    delete right[other];
  };
  if ("model" in left) take("model");
  pairs.push(...conversation(left, right, api, reasons));
  pairs.push(...tools(left, right, reasons));
  for (const name of Object.keys(left)) {
    const places = [name, ...(api.places[name] ?? [])].filter((place) => place in right);
    if (places.length) {
      pairs.push(
        compared(
          [part(left, name)],
          places.map((place) => part(right, place)),
          reasons.of(name),
        ),
      );
      for (const place of places) delete right[place];
    } else {
      const notes = reasons.of(name);
      const kept = !notes.length && HERE[name];
      pairs.push({
        kind: kept ? "here" : "dropped",
        left: [part(left, name)],
        right: [],
        notes: kept ? [kept] : notes,
      });
    }
  }
  for (const name of Object.keys(right)) {
    pairs.push({ kind: "added", left: [], right: [part(right, name)], notes: [ADDED[name]].filter(Boolean) });
  }
  return { pairs, warnings: reasons.rest };
}

/** How many pairs there are of each kind. */
export function counts(pairs) {
  const numbers = {};
  for (const { kind } of pairs) numbers[kind] = (numbers[kind] ?? 0) + 1;
  return numbers;
}

const part = (values, name) => ({ path: name, value: values[name] });
const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** @returns {Pair} */
function compared(left, right, notes = []) {
  const one = left.length === 1 && right.length === 1;
  const kind =
    one && equal(left[0].value, right[0].value) ? (left[0].path === right[0].path ? "same" : "renamed") : "translated";
  return { kind, left, right, notes };
}

// The warnings, each of which is given to the first part that it names.
class Reasons {
  constructor(warnings) {
    this.rest = [...warnings];
  }

  take(test) {
    const found = this.rest.filter(test);
    this.rest = this.rest.filter((warning) => !found.includes(warning));
    return found;
  }

  of(name) {
    const named = new RegExp(`['"\`]${name.replace(/[[\]]/g, "\\$&")}(['"\`.[])`);
    return this.take((warning) => named.test(warning));
  }

  about(word) {
    return this.take((warning) => warning.toLowerCase().includes(word));
  }
}

// Instructions, earlier turns and input, and the messages that they became.
function conversation(left, right, api, reasons) {
  const pairs = [];
  const units = [
    ...(right.system === undefined ? [] : unitsOf(right.system, "system")),
    ...unitsOf(right[api.messages] ?? [], api.messages),
  ];
  const items = itemsOf(left.input);
  const owners = owned(items, units);
  const firstOwn = owners.findIndex((owner) => owner !== null);
  const before = (index) => firstOwn < 0 || index < firstOwn;
  const instructions = [];
  const earlier = [];
  const others = [];
  units.forEach((unit, index) => {
    if (owners[index] !== null) return;
    if (left.instructions && (unit.tokens.has(`t:${left.instructions}`) || unit.path === "system"))
      instructions.push(unit);
    else if (before(index) && (left.previous_response_id || left.conversation)) earlier.push(unit);
    else others.push(unit);
  });
  if (left.instructions && "instructions" in right)
    pairs.push(compared([part(left, "instructions")], [part(right, "instructions")], reasons.of("instructions")));
  else if (left.instructions)
    pairs.push({
      kind: instructions.length ? "translated" : "dropped",
      left: [part(left, "instructions")],
      right: instructions,
      notes: reasons.of("instructions"),
    });
  const past = ["previous_response_id", "conversation"].find((name) => left[name]);
  if (past)
    pairs.push({
      kind: earlier.length ? "earlier" : "here",
      left: [part(left, past)],
      right: earlier,
      notes: [HERE[past]],
    });
  const done = new Set();
  units.forEach((unit, index) => {
    const owner = owners[index];
    if (owner === null) {
      if (others.includes(unit)) pairs.push({ kind: "added", left: [], right: [unit], notes: [] });
      return;
    }
    if (done.has(unit)) return;
    // Items that became one message, and messages that became of one item.
    const its = units.filter((_, each) => owners[each]?.some((item) => owner.includes(item)));
    const all = items.filter((item) => its.some((each) => owners[units.indexOf(each)]?.includes(item)));
    for (const each of its) done.add(each);
    pairs.push(compared(all, its));
  });
  const found = new Set(owners.flatMap((owner) => owner ?? []));
  for (const item of items) {
    if (found.has(item)) continue;
    const type = item.value?.type ?? "message";
    pairs.push({
      kind: "dropped",
      left: [item],
      right: [],
      notes: [...reasons.of(item.path), ...reasons.about(type.split("_")[0])],
    });
  }
  for (const name of ["instructions", "input", "previous_response_id", "conversation"]) delete left[name];
  for (const name of ["instructions", "system", api.messages]) delete right[name];
  return pairs;
}

// For each unit of the backend's conversation the items that it was made of, or null. Both are compared from the end,
// since earlier turns can have the same texts. An item has several units only within one message.
function owned(items, units) {
  const owners = units.map(() => null);
  let last = items.length;
  let message = "";
  for (let index = units.length - 1; index >= 0; index--) {
    const { path, tokens } = units[index];
    const first = messageOf(path) === message ? last : last - 1;
    for (let at = Math.min(first, items.length - 1); at >= 0; at--) {
      if (!shared(items[at].tokens, tokens)) continue;
      owners[index] = [items[at]];
      last = at;
      message = messageOf(path);
      break;
    }
  }
  const found = new Set(owners.flatMap((owner) => owner ?? []));
  for (const item of items) {
    if (found.has(item)) continue;
    const index = units.findLastIndex((unit, each) => shared(item.tokens, unit.tokens) && owners[each] !== null);
    if (index >= 0)
      owners[index] = [...owners[index], item].sort((one, other) => items.indexOf(one) - items.indexOf(other));
  }
  return owners;
}

const messageOf = (path) => path.replace(/\.content.*/, "");
const shared = (one, other) => [...one].some((token) => other.has(token));

function itemsOf(input) {
  if (typeof input === "string") return [{ path: "input", value: input, tokens: new Set([`t:${input}`]) }];
  return (input ?? []).map((value, index) => ({ path: `input[${index}]`, value, tokens: tokensOf(value) }));
}

// The messages of a backend's request; of the Messages API, the parts of each.
function unitsOf(messages, path) {
  if (typeof messages === "string") return [{ path, value: messages, tokens: new Set([`t:${messages}`]) }];
  return messages.flatMap((value, index) => {
    const place = path === "system" ? "system" : `${path}[${index}]`;
    const parts = Array.isArray(value.content) && value.content.length > 1 ? value.content : [];
    const results = parts.some(({ type }) => /^tool_(use|result)$/.test(type));
    if (!results) return [{ path: place, value, tokens: tokensOf(value) }];
    return parts.map((each, number) => ({ path: `${place}.content[${number}]`, value: each, tokens: tokensOf(each) }));
  });
}

// What a part of a conversation has in common with the part that it becomes: its texts, images and ids of calls.
function tokensOf(value) {
  const tokens = new Set();
  const text = (each) => typeof each === "string" && each && tokens.add(`t:${each}`);
  const call = (id) => id && tokens.add(`call:${id}`);
  const output = (id) => id && tokens.add(`output:${id}`);
  const walk = (each) => {
    if (typeof each === "string") return text(each);
    if (Array.isArray(each)) return each.forEach(walk);
    if (!each || typeof each !== "object") return undefined;
    for (const name of ["text", "refusal", "reasoning", "reasoning_content", "thinking"]) text(each[name]);
    for (const name of ["content", "summary"]) walk(each[name]);
    const image = each.image_url?.url ?? each.image_url ?? each.source?.url ?? each.source?.data;
    if (typeof image === "string") tokens.add(`i:${image.slice(-60)}`);
    for (const each_ of each.tool_calls ?? []) call(each_.id);
    if (each.type === "tool_use") call(each.id);
    if (each.type === "tool_result") output(each.tool_use_id);
    if (each.role === "tool") output(each.tool_call_id);
    if (each.type?.endsWith("_call_output")) output(each.call_id);
    else if (each.type?.endsWith("_call")) call(each.call_id);
    return undefined;
  };
  walk(value);
  if (value?.type?.endsWith("_output") || value?.role === "tool" || value?.type === "tool_result")
    for (const token of tokens) if (token.startsWith("t:")) tokens.delete(token);
  return tokens;
}

// Functions by name; a tool that this server runs becomes the functions that it has.
function tools(left, right, reasons) {
  const pairs = [];
  const nameOf = (tool) => tool.function?.name ?? tool.name;
  const theirs = (right.tools ?? []).map((value, index) => ({ path: `tools[${index}]`, value }));
  const ours = (left.tools ?? []).map((value, index) => ({ path: `tools[${index}]`, value }));
  const used = new Set();
  for (const tool of ours) {
    const { type, server_label: label } = tool.value;
    const its = theirs.filter(
      (each) =>
        !used.has(each) &&
        (nameOf(each.value) === nameOf(tool.value) ||
          (label && nameOf(each.value)?.startsWith(label)) ||
          nameOf(each.value) === type),
    );
    for (const each of its) used.add(each);
    if (its.length) pairs.push(compared([tool], its, reasons.of(tool.path)));
    else if (type === "function" || type === "custom")
      pairs.push({ kind: "dropped", left: [tool], right: [], notes: reasons.of(tool.path) });
    else
      pairs.push({
        kind: "here",
        left: [tool],
        right: [],
        notes: ["Antiphon runs this tool. Its functions are listed when the model is called."],
      });
  }
  for (const tool of theirs) if (!used.has(tool)) pairs.push({ kind: "added", left: [], right: [tool], notes: [] });
  if (ours.length) reasons.take((warning) => warning.startsWith("The functions of hosted tools"));
  delete left.tools;
  delete right.tools;
  return pairs;
}
