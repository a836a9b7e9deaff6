// The columns of the log: what a cell shows of a response.

import { h } from "../lib/dom.js";
import { segments } from "../lib/segments.js";
import { money } from "../lib/tables.js";
import { count, cut, plain, seconds, when } from "../lib/text.js";
import { isRunning } from "./log.js";

const STATES = { in_progress: "Running", queued: "Queued" };
const PARTS = {
  queue: "queue",
  wait: "first token",
  model: "output",
  tools: "opening tools",
  tool: "tool",
  between: "between",
  failed: "failed",
};

const dash = () => h("span", { class: "note" }, "–");
const duration = (value) => (typeof value === "number" ? seconds(value * 1000) : dash());
const number = (value) => (typeof value === "number" ? count(value) : dash());

export const stateName = (status) => STATES[status] ?? status[0].toUpperCase() + status.slice(1).replaceAll("_", " ");

/** A dot in the colour of a state, and its name. */
export const stateView = (status) =>
  h("span", { class: `run-state ${STATES[status] ? "working" : status}` }, stateName(status));

/** Each column: its name, whether it is a number, its width in pixels (0: a share of the rest), and its cell. */
export const COLUMNS = {
  time: { name: "Time", width: 112, cell: (entry) => h("span", { title: exact(entry) }, when(entry.created_at)) },
  status: { name: "Status", width: 114, cell: ({ status, error }) => h("span", { title: error }, stateView(status)) },
  input: { name: "Input", width: 0, cell: (entry, link) => link(plain(entry.preview || "(no text)")) },
  output: { name: "Output", width: 0, cell: outputOf },
  model: { name: "Model", width: 124, cell: ({ model }) => h("span", { title: plain(model) }, plain(model)) },
  in: { name: "In", width: 64, number: true, cell: ({ usage }) => number(usage?.input_tokens) },
  out: { name: "Out", width: 64, number: true, cell: ({ usage }) => number(usage?.output_tokens) },
  first: { name: "First token", width: 92, number: true, cell: (entry) => duration(entry.first_token_seconds) },
  duration: { name: "Duration", width: 84, number: true, cell: (entry) => duration(entry.seconds) },
  waterfall: { name: "Waterfall", width: 150, unsorted: true, cell: waterfall },
  cost: { name: "Cost", width: 96, number: true, cell: ({ cost }) => (cost ? money(cost) : dash()) },
  tools: { name: "Tools", width: 130, unsorted: true, cell: toolsOf },
  key: { name: "Key", width: 92, cell: ({ key }) => plain(key ?? "–") },
  backend: { name: "Backend", width: 100, cell: ({ backend }) => plain(backend ?? "–") },
  delivery: {
    name: "Delivery",
    width: 92,
    cell: ({ delivery, background }) => delivery ?? (background ? "background" : "–"),
  },
};

/** The columns of a window that is too narrow for a table: the exchange, and figures beside it. */
export const NARROW = {
  exchange: {
    name: "Response",
    width: 0,
    unsorted: true,
    cell: (entry, link) => [
      h("span", { class: "exchange-input" }, COLUMNS.input.cell(entry, link)),
      h("span", { class: "exchange-output" }, outputOf(entry)),
    ],
  },
  figures: {
    name: "Time, model and duration",
    width: 118,
    unsorted: true,
    cell: (entry) => [
      h("span", { class: "exchange-input" }, when(entry.created_at)),
      h(
        "span",
        { class: "exchange-output" },
        entry.status === "completed" ? duration(entry.seconds) : stateView(entry.status),
      ),
    ],
  },
};

/**
 * The columns to show where none were chosen.
 * @param {number} width of the table, in pixels
 * @param {{id: string, [field: string]: any}[]} entries
 */
export function defaultColumns(width, entries) {
  const names = ["time", "status", "input", "output", "model", "out", "duration", "waterfall"];
  const some = (test) => entries.some(test);
  if (width >= 960) names.splice(5, 0, "in");
  if (width >= 1080 && some(({ cost }) => cost)) names.push("cost");
  if (width >= 1180 && some(({ tools }) => tools?.length)) names.push("tools");
  if (width >= 1180 && new Set(entries.map(({ key }) => key ?? "")).size > 1) names.push("key");
  return width >= 820 ? names : names.filter((name) => !["output", "out"].includes(name));
}

const exact = ({ created_at: at }) => new Date(at * 1000).toLocaleString();

function outputOf(entry) {
  const { status, error, answer, tools } = entry;
  if (status === "failed") return h("span", { class: "bad" }, plain(error ?? "failed"));
  if (answer) return h("span", {}, plain(withoutMarks(answer)));
  if (isRunning(entry)) return h("span", { class: "note pulse" }, "Answering…");
  return tools?.length ? h("span", { class: "note" }, `called ${plain(cut(tools.join(", "), 60))}`) : dash();
}

/** The beginning of an answer without the marks of Markdown. */
export function withoutMarks(text) {
  return text
    .replace(/!\[([^\]]*)\]\([^)]*\)?/g, "$1")
    .replace(/\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/\*\*|__|`+/g, "")
    .replace(/(^|[\s(])([*_])(?=\S)([^*_\n]*[^*_\s])\2/g, "$1$3")
    .replace(/(^|\s)#{1,6} /g, "$1");
}

function toolsOf({ tools }) {
  return (tools ?? [])
    .slice(0, 3)
    .map((tool) => h("span", { class: "chip", title: plain(tool) }, plain(cut(tool, 18))));
}

function waterfall(entry) {
  const parts = segments(entry);
  if (!parts.length)
    return isRunning(entry)
      ? h("span", { class: "waterfall running pulse" }, h("span", { class: "visually-hidden" }, "Running"))
      : dash();
  const whole = entry.seconds;
  const text = parts
    .map(({ kind, start, end, name }) => `${name ? plain(name) : PARTS[kind]} ${seconds((end - start) * 1000)}`)
    .join(", ");
  const bar = h(
    "span",
    { class: "waterfall", role: "img", "aria-label": text, title: text },
    parts.map(({ kind, start, end }) => {
      const part = h("span", { class: `part ${kind}` });
      part.style.width = `${(((end - start) / whole) * 100).toFixed(2)}%`;
      return part;
    }),
  );
  bar.style.setProperty("--seconds", whole.toFixed(4));
  return bar;
}
