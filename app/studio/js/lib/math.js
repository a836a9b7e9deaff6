// TeX in answers: $…$ and \(…\) within a line, $$…$$ and \[…\] as blocks; drawn by KaTeX as MathML, once there is any.

import { h } from "./dom.js";

// A price is no formula: a dollar sign opens one before a character that is no space, and closes one behind such a
// character, but not before a digit (the rule of Pandoc).
const INLINE = /^(?:\$(?![\s$])((?:\\[\s\S]|[^\\$\n])+?)(?<!\s)\$(?![\d$])|\\\(([\s\S]+?)\\\))/;
const DISPLAY_INLINE = /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\])/;
const BLOCK = /^ {0,3}(?:\$\$\s*\n?([\s\S]+?)\n?\s*\$\$|\\\[\s*\n?([\s\S]+?)\n?\s*\\\]) *(?:\n+|$)/;

const token = (type, pattern, display) => (source) => {
  const match = pattern.exec(source);
  return match ? { type, raw: match[0], text: (match[1] ?? match[2]).trim(), display } : undefined;
};
const start = (source) => {
  const at = source.search(/\$|\\[([]/);
  return at < 0 ? undefined : at;
};

/** Extensions of marked, without their renderer. */
export const MATHS = [
  {
    name: "mathBlock",
    level: "block",
    start: (source) => source.match(/\n *(?:\$\$|\\\[)/)?.index,
    tokenizer: token("mathBlock", BLOCK, true),
  },
  { name: "mathDisplay", level: "inline", start, tokenizer: token("mathDisplay", DISPLAY_INLINE, true) },
  { name: "math", level: "inline", start, tokenizer: token("math", INLINE, false) },
];

/** A formula: its TeX, until KaTeX has drawn it. */
export function mathView(tex, display) {
  const view = h(
    display ? "div" : "span",
    { class: `math${display ? " display" : ""}`, dir: "ltr" },
    h("code", {}, tex),
  );
  draw(view, tex, display);
  return view;
}

async function draw(view, tex, display) {
  await import("../../vendor/katex/katex.min.js");
  /** @type {any} */
  const { katex } = globalThis;
  const drawn = document.createElement("span");
  try {
    // No markup of its own, no links, no images, no endless macros.
    katex.render(tex, drawn, {
      displayMode: display,
      output: "mathml",
      trust: false,
      strict: "ignore",
      maxSize: 20,
      maxExpand: 300,
    });
    view.replaceChildren(...drawn.childNodes);
  } catch {
    view.title = "This formula cannot be drawn."; // its TeX stays
  }
}
