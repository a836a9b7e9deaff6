// The facts below an answer: model, backend, time, speed, tokens, cost.

import { h } from "../lib/dom.js";
import { money } from "../lib/tables.js";
import { plain, seconds, speed, tokens } from "../lib/text.js";

/**
 * @param {any} response
 * @param {any} measures {seconds, first_token_seconds, cost, backend}, all optional
 * @param {{model?: string, backend?: string}} [before] values of the previous turn, which are not repeated
 */
export function factsView({ model, usage }, measures, before = {}) {
  const rate = speed(usage?.output_tokens, measures);
  const facts = [
    model === before.model ? null : [plain(model), "Model"],
    measures.backend && measures.backend !== before.backend ? [plain(measures.backend), "Backend"] : null,
    measures.seconds
      ? [
          seconds(measures.seconds * 1000),
          measures.first_token_seconds
            ? `First token after ${seconds(measures.first_token_seconds * 1000)}`
            : "Duration",
        ]
      : null,
    rate ? [`${rate} tokens/s`, "Speed, from the first token to the last"] : null,
    usage ? [tokens(usage), "Tokens in and out"] : null,
    typeof measures.cost === "number"
      ? [`cost ${money(measures.cost)}`, "In the currency of the server's prices"]
      : null,
  ];
  return h(
    "p",
    { class: "facts note" },
    facts.filter(Boolean).map(([text, title]) => h("span", { title }, text)),
  );
}
