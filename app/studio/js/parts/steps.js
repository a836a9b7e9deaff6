// The timeline of one response: each step in its place in time, with the gaps named.

import { h } from "../lib/dom.js";
import { segments, steps } from "../lib/segments.js";
import { many, plain, seconds } from "../lib/text.js";

const NAMES = {
  queue: "Waiting for a free slot",
  wait: "Waiting for the first token",
  tools: "Connecting to tools and listing them",
  between: "Between the steps",
  model: "Output",
  failed: "Output, until it failed",
};

/** @returns {any} null if nothing was measured */
export function stepsView(measures, status) {
  const whole = measures?.seconds;
  if (!(whole > 0)) return null;
  const rows = measures.steps?.length ? steps(measures) : segments({ ...measures, status });
  return h(
    "ol",
    { class: "gantt" },
    rows.map((row) => stepView(row, whole)),
  );
}

/**
 * @param {any} row
 * @param {number} whole seconds
 */
function stepView({ kind, failed, round, name, start, end, tokens }, whole) {
  const text = name ?? (round === undefined ? NAMES[kind] : `Model, round ${round + 1}`);
  const bar = h("span", { class: `gantt-bar ${failed ? "failed" : kind}` });
  bar.style.left = `${Math.min(99.5, (start / whole) * 100).toFixed(2)}%`;
  bar.style.width = `${Math.min(100, (Math.max(0, end - start) / whole) * 100).toFixed(2)}%`;
  const exact = h("span", { class: "visually-hidden" }, `${seconds(start * 1000)} to ${seconds(end * 1000)}: `);
  return h(
    "li",
    {},
    h("span", { class: "gantt-name", title: text }, plain(text)),
    h("span", { class: "gantt-track", "aria-hidden": "true" }, bar),
    h(
      "span",
      { class: "gantt-time" },
      exact,
      seconds((end - start) * 1000),
      tokens ? `, ${many(tokens, "token")}` : "",
    ),
  );
}
