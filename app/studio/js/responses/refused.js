// The requests that were refused in the last 24 hours.

import { h } from "../lib/dom.js";
import { dataTable } from "../lib/tables.js";
import { count, plain, when } from "../lib/text.js";

/** @param {any[]} refusals newest first */
export function refusedView(refusals) {
  if (!refusals.length) return [h("p", { class: "note" }, "No request was refused in the last 24 hours.")];
  const codes = new Map();
  for (const { code, status } of refusals) codes.set(code ?? status, (codes.get(code ?? status) ?? 0) + 1);
  const sums = [...codes].sort(([, one], [, other]) => other - one);
  return [
    h("p", { class: "note" }, "Requests refused in the last 24 hours. Their content is not kept."),
    h(
      "ul",
      { class: "facet-row" },
      sums.map(([code, number]) => h("li", { class: "chip" }, plain(code), " ", h("b", {}, count(number)))),
    ),
    dataTable(
      "Refused requests",
      [["Time"], ["Status"], ["Reason"], ["Parameter"], ["Key"], ["Endpoint"], ["Request"]],
      refusals.map(({ at, status, code, param, key, endpoint, request_id: id }) => [
        when(at),
        h("span", { class: `chip ${status === 429 ? "busy" : "failed"}` }, count(status)),
        plain(code ?? "refused"),
        param ? h("code", {}, plain(param)) : "–",
        plain(key),
        h("code", {}, plain(endpoint)),
        h("code", {}, plain(id)),
      ]),
    ),
  ];
}
