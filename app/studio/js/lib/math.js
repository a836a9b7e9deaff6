// TeX in answers: inline $…$ and \(…\), display $$…$$ and \[…\]. KaTeX renders MathML and is loaded on first use.

import { h } from "./dom.js";

// Pandoc's rule keeps prices from being parsed as math: an opening dollar sign must precede a non-space character; a
// closing one must follow a non-space character and must not precede a digit.
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

/** Extensions for marked, without renderers. */
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

/** Create a formula: TeX until KaTeX has rendered it. */
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
    // Disable raw markup, links, images and macro loops.
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
    view.title = "This formula cannot be rendered.";
  }
}
