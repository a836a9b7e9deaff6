// Where the time of a response went. No DOM.

/**
 * The parts of a response in time, in seconds: waiting for a free slot, opening tools, the model, calls of tools.
 * @returns {{kind: string, start: number, end: number, name?: string}[]} without gaps
 */
export function segments({ seconds, first_token_seconds: first, queued_seconds: queued, steps, status }) {
  if (!(seconds > 0)) return [];
  const parts = [];
  let at = 0;
  const add = (kind, end, name) => {
    if (end > at + 1e-4) parts.push({ kind, start: at, end, ...(name ? { name } : {}) });
    at = Math.max(at, end);
  };
  if (!steps?.length) {
    const begins = Math.min(first ?? seconds, seconds);
    if (queued) add("queue", Math.min(queued, begins));
    add("wait", begins);
    add(status === "failed" ? "failed" : "model", seconds);
    return parts;
  }
  let began = false; // whether the first token of the first round is accounted for
  for (const { kind, start, end, function: name, queued: waited = began ? 0 : queued, status: state } of steps) {
    if (end <= at) continue; // calls at the same time: the longest is drawn
    add("between", Math.min(start, seconds));
    if (kind === "model") {
      if (waited) add("queue", Math.min(at + waited, end));
      if (!began && first > at && first < end) add("wait", first);
      began = true;
    }
    add(state === "failed" ? "failed" : kind, Math.min(end, seconds), name);
  }
  add("between", seconds);
  return parts;
}

/**
 * The steps of a response with hosted tools, and the gaps between them; `round` counts from 0.
 * @returns {{kind: string, start: number, end: number, failed?: boolean, round?: number, name?: string,
 *   tokens?: number}[]}
 */
export function steps({ steps: listed, seconds: whole, first_token_seconds: first }) {
  const rows = [];
  let reached = 0;
  for (const { kind, start, end, round, status, output_tokens: tokens, function: called, queued } of listed) {
    if (start - reached > 0.005) rows.push({ kind: "between", start: reached, end: start });
    if (queued) rows.push({ kind: "queue", start, end: start + queued });
    if (kind === "model" && round === 0 && first > start && first < end)
      rows.push({ kind: "wait", start: start + (queued ?? 0), end: first });
    rows.push({ kind, failed: status === "failed", round, name: called, start, end, tokens });
    reached = Math.max(reached, end);
  }
  if (whole - reached > 0.005) rows.push({ kind: "between", start: reached, end: whole });
  return rows;
}
