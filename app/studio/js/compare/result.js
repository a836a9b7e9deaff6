// What is compared of two responses, and the sums of many comparisons. No DOM.

/**
 * @typedef {Object} Result
 * @property {string} model
 * @property {string} status
 * @property {string} text of all messages
 * @property {string[]} calls names with arguments
 * @property {number | null} input tokens
 * @property {number | null} output tokens
 * @property {number | null} seconds
 * @property {number | null} first seconds to the first token
 * @property {number | null} cost
 */

/** @returns {Result} */
export function resultOf(response, { seconds = null, first_token_seconds: first = null, cost = null } = {}) {
  const parts = response.output.filter(({ type }) => type === "message").flatMap(({ content }) => content);
  return {
    model: response.model,
    status: response.status,
    text: parts.map((part) => part.text ?? part.refusal ?? "").join("\n"),
    calls: response.output.filter(({ type }) => type.endsWith("_call")).map(callOf),
    input: response.usage?.input_tokens ?? null,
    output: response.usage?.output_tokens ?? null,
    seconds,
    first,
    cost,
  };
}

// A call with its arguments, in which the order of the fields and white space do not matter.
function callOf(item) {
  const given = item.arguments ?? item.input ?? item.code ?? item.action ?? "";
  const name = item.name ?? item.type.replace(/_call$/, "");
  try {
    return `${name} ${JSON.stringify(sorted(typeof given === "string" ? JSON.parse(given) : given))}`;
  } catch {
    return `${name} ${given}`;
  }
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((name) => [name, sorted(value[name])]),
  );
}

/** "same", or what differs first: "status", "calls" or "text". */
export function difference(before, after) {
  if (before.status !== after.status) return "status";
  if (JSON.stringify(before.calls) !== JSON.stringify(after.calls)) return "calls";
  return before.text === after.text ? "same" : "text";
}

/** The change from one number to another as a share: 0.25 is a quarter more; null if it cannot be told. */
export const change = (before, after) =>
  typeof before === "number" && typeof after === "number" && before > 0 ? after / before - 1 : null;

/** "25% slower", "2.1× faster"; "" if it is unknown. */
export function changeText(share, more, less) {
  if (share === null) return "";
  if (Math.abs(share) < 0.005) return "no change";
  const ratio = share > 0 ? 1 + share : 1 / (1 + share);
  const amount = ratio >= 2 ? `${ratio.toFixed(1)}×` : `${Math.round(Math.abs(share) * 100)}%`;
  return `${amount} ${share > 0 ? more : less}`;
}

/** The sums of pairs of results. */
export function summary(pairs) {
  const both = (field) => pairs.filter(([one, other]) => one[field] !== null && other[field] !== null);
  const sum = (field, index) => both(field).reduce((total, pair) => total + pair[index][field], 0);
  return {
    number: pairs.length,
    same: pairs.filter(([one, other]) => difference(one, other) === "same").length,
    seconds: [sum("seconds", 0), sum("seconds", 1)],
    cost: [sum("cost", 0), sum("cost", 1)],
    output: [sum("output", 0), sum("output", 1)],
  };
}

/**
 * The indexes of the best: the smallest of each of these numbers, or the greatest. Numbers that `show` shows alike are
 * equal; if all are equal, there is none.
 * @param {(number | null | undefined)[]} values
 * @param {{greatest?: boolean, show?: (value: number) => string}} [how]
 */
export function best(values, { greatest = false, show = String } = {}) {
  const known = values.filter((value) => typeof value === "number");
  if (known.length < 2) return [];
  const wanted = greatest ? Math.max(...known) : Math.min(...known);
  const isBest = (value) => typeof value === "number" && show(value) === show(wanted);
  return known.every(isBest) ? [] : values.flatMap((value, index) => (isBest(value) ? [index] : []));
}

/**
 * The turns of conversations that are compared: those after the responses that all have in common.
 * @param {any[][]} chains
 */
export function ownTurns(chains) {
  let common = 0;
  const shortest = Math.min(...chains.map(({ length }) => length));
  const id = (chain) => chain[common].response.id;
  while (chains.length > 1 && common < shortest && chains.every((chain) => id(chain) === id(chains[0]))) common++;
  return chains.map((chain) => chain.slice(Math.min(common, chain.length - 1)));
}
