// Error cards.

import { button, h } from "../lib/dom.js";
import { advice, retryAt } from "../lib/errors.js";
import { plain } from "../lib/text.js";

/**
 * Create an error card: message, advice, one action, and folded details.
 * @param {any} error an ApiError
 * @param {string} [requestId]
 * @param {[string, () => void] | null} [action] label and callback
 */
export function failureView(error, requestId = error.requestId, action = null) {
  const told = h("p", {}, advice(error));
  const act = action ? button(action[0], action[1]) : null;
  countDown(error, told, act);
  const details = [
    ["Type", error.type],
    ["Code", error.code],
    ["Parameter", error.param],
    ["Status", error.status || ""],
    ["Request", requestId],
  ].filter(([, value]) => value);
  return h(
    "div",
    { class: "failure", role: "group", "aria-label": "Error" },
    h("p", {}, h("b", {}, plain(error.message))),
    told.textContent ? told : null,
    act ? h("div", { class: "buttons" }, act) : null,
    details.length
      ? h(
          "details",
          {},
          h("summary", {}, "Details"),
          h(
            "dl",
            { class: "fields" },
            details.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, plain(value))]),
          ),
        )
      : null,
  );
}

// Count down to the retry time of a rate limit, and disable the button until then.
function countDown(error, told, act) {
  const time = retryAt(error);
  if (time === null) return;
  const tell = () => {
    const waits = Date.now() < time;
    told.textContent = advice(error);
    if (act) act.disabled = waits;
    if (!waits) clearInterval(timer);
  };
  const timer = setInterval(() => (told.isConnected ? tell() : clearInterval(timer)), 1000);
  if (act) act.disabled = Date.now() < time;
}
