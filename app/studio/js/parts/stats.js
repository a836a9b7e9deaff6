// The figures of a turn: of its stream while it is kept, else those that the server has stored. No DOM.

import { count, seconds, speed } from "../lib/text.js";

/** @returns {[string, string][]} names and values */
export function statsOf({ log, live, measures }) {
  const usage = live?.response?.usage;
  const times = log ? log.measures() : (measures ?? {});
  const time = (value) => (typeof value === "number" ? seconds(value * 1000) : "–");
  const tokens = (all, part, name) => (part ? `${count(all)} (${count(part)} ${name})` : count(all));
  return [
    ["First token", time(times.first_token_seconds)],
    ["Total", time(times.seconds)],
    ["Tokens per second", speed(usage?.output_tokens, times) ?? "–"],
    ["Events", log ? count(log.events.length + log.dropped) : "–"],
    ["Input tokens", usage ? tokens(usage.input_tokens, usage.input_tokens_details?.cached_tokens, "cached") : "–"],
    [
      "Output tokens",
      usage ? tokens(usage.output_tokens, usage.output_tokens_details?.reasoning_tokens, "reasoning") : "–",
    ],
  ];
}
