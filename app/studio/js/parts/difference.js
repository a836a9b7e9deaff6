// What differs between two texts, word by word, or line by line where they are long.

import { h } from "../lib/dom.js";
import { many, plain } from "../lib/text.js";

const LONGEST = 20_000; // characters that are compared by words
const MOST = 4_000; // insertions and deletions, beyond which two texts have nothing in common

/** The changes from one text to another, as elements. */
export async function differenceView(before, after) {
  if (before === after) return h("p", { class: "note" }, "The texts are the same.");
  await import("../../vendor/diff/diff.min.js");
  const { diffLines, diffWordsWithSpace } = globalThis.Diff;
  const byWords = before.length + after.length <= LONGEST;
  const changes = (byWords ? diffWordsWithSpace : diffLines)(before, after, { maxEditLength: MOST });
  if (!changes) return h("p", { class: "note" }, "The texts differ too much to compare word by word.");
  const sum = (kind) =>
    changes
      .filter((change) => change[kind])
      .reduce((all, { value, count }) => all + (byWords ? value.split(/\s+/).filter(Boolean).length : count), 0);
  const unit = byWords ? "word" : "line";
  return [
    h(
      "p",
      { class: "note" },
      `${many(sum("removed"), unit)} removed (struck through), ${many(sum("added"), unit)} added (underlined).`,
    ),
    h(
      "div",
      { class: "difference plain", tabindex: 0, role: "region", "aria-label": "Difference of the texts" },
      changes.map(({ value, added, removed }) =>
        added ? h("ins", {}, plain(value)) : removed ? h("del", {}, plain(value)) : plain(value),
      ),
    ),
  ];
}
