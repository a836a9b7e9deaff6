// The client's request beside the backend's request, part by part, with the reason for each difference.

import { colour } from "../lib/colour.js";
import { compact } from "../lib/compact.js";
import { button, copyButton, h } from "../lib/dom.js";
import { count, laidOut, plain } from "../lib/text.js";
import { align, apiOf, counts } from "./align.js";

const LONGEST = 60_000; // characters that get colours
const LINES = 14; // of a part; what is longer is folded

// In the order of the legend: the word for each kind of pair, and for the number of them.
const KINDS = {
  same: ["same", "unchanged"],
  renamed: ["renamed", "renamed"],
  translated: ["translated", "translated"],
  earlier: ["expanded", "expanded"],
  here: ["handled here", "handled by Antiphon"],
  dropped: ["dropped", "dropped"],
  added: ["added", "added"],
};

/** A value as JSON, in colours. */
export function json(value, label) {
  const text = laidOut(value);
  const block = h("pre", { class: "json", tabindex: 0, role: "region", "aria-label": label }, text);
  if (text.length <= LONGEST) colour(block, text, "json");
  return block;
}

/** @returns {any[]} the elements of the aligned view */
export function translationView({ backend, profile, url, body, warnings }, request) {
  const { pairs, warnings: others } = align(request, { url, body, warnings });
  const numbers = counts(pairs);
  const api = apiOf(url);
  const title = `${api.name} request`;
  return [
    h(
      "p",
      { class: "note" },
      "Backend ",
      h("b", {}, plain(backend)),
      ", profile ",
      h("b", {}, plain(profile)),
      url ? [", ", h("code", {}, plain(url))] : "",
    ),
    h(
      "ul",
      { class: "aligned-legend" },
      Object.entries(KINDS)
        .filter(([kind]) => numbers[kind])
        .map(([kind, [, words]]) => h("li", { class: `pair-kind ${kind}` }, `${count(numbers[kind])} ${words}`)),
    ),
    others.length
      ? h(
          "ul",
          { class: "warnings" },
          others.map((warning) => h("li", {}, plain(warning))),
        )
      : null,
    h(
      "div",
      { class: "aligned", role: "table", "aria-label": "Client request and backend request" },
      h(
        "div",
        { class: "aligned-head", role: "row" },
        h(
          "div",
          { role: "columnheader" },
          h("b", {}, "Client request"),
          copyButton(() => JSON.stringify(request, null, 2), "Request"),
        ),
        h("div", { role: "columnheader" }, h("span", { class: "visually-hidden" }, "What happened to it")),
        h(
          "div",
          { role: "columnheader" },
          h("b", {}, title),
          copyButton(() => JSON.stringify(body, null, 2), title),
        ),
      ),
      pairs.map(pairView),
    ),
  ].filter(Boolean);
}

function pairView({ kind, left, right, notes }) {
  const moved = kind === "renamed" && /\[/.test(left[0].path) ? "moved" : KINDS[kind][0];
  const reasons = notes.length
    ? h(
        "span",
        { class: "pair-notes" },
        notes.map((note) => h("span", {}, plain(note))),
      )
    : null;
  // The reason stands in the side that is empty, else in the middle.
  const side = (parts) => h("div", { class: "pair-side", role: "cell" }, parts.length ? parts.map(partView) : reasons);
  return h(
    "div",
    { class: `pair ${kind}`, role: "row" },
    side(left),
    h(
      "div",
      { class: "pair-between", role: "cell" },
      h("span", { class: `pair-kind ${kind}` }, moved),
      left.length && right.length ? reasons : null,
    ),
    side(right),
  );
}

function partView({ path, value }) {
  const text = plain(compact(JSON.parse(laidOut(value))));
  const lines = text.split("\n");
  const short = lines.length === 1 && text.length < 60;
  const block = h(
    short ? "code" : "pre",
    { class: "part-value", dir: typeof value === "string" ? "auto" : null },
    text,
  );
  const show = (shown) => {
    block.textContent = shown;
    if (shown.length <= LONGEST) colour(block, shown, "json");
  };
  const long = lines.length > LINES || text.length > 2000;
  const cut = long ? `${lines.slice(0, LINES).join("\n").slice(0, 2000)}\n…` : text;
  show(cut);
  const more = long
    ? button(
        `Show all (${count(lines.length)} lines)`,
        () => {
          show(text);
          more.remove();
        },
        { class: "quiet" },
      )
    : null;
  return h(
    "div",
    { class: short ? "part short" : "part" },
    h("code", { class: "part-path" }, plain(path)),
    block,
    more,
  );
}
