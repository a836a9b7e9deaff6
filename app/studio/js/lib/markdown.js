// Safe, incremental Markdown.
//
// Model output is untrusted: HTML is shown as text, DOMPurify keeps a short allow-list of elements and attributes, and
// nothing is loaded from other hosts.

import "../../vendor/dompurify/purify.min.js";
import { Lexer, marked } from "../../vendor/marked/marked.esm.js";
import { codeBlock } from "./code_block.js";
import { h, schedule } from "./dom.js";
import { MATHS, mathView } from "./math.js";
import { pictureView } from "./picture.js";
import { plain, webUrl } from "./text.js";

const { DOMPurify } = /** @type {any} */ (globalThis);

const SLICE = 8; // ms of rendering in one frame
const LONGEST_APPEND = 8_000; // characters per append, at most
const SHORTEST_APPEND = 250; // and at least, on a slow machine
const LONGEST_TAIL = 4_000; // characters of an open block that is re-rendered each frame
const LONGEST_BLOCK = 1_000; // characters per text node of a raw block
const LONGEST_WHOLE = 30_000; // characters of a text that is lexed at once
const LONGEST_OPEN = 100_000; // characters of an open block that is rendered at the end

const ALLOWED = {
  ALLOWED_TAGS: [
    "a",
    "blockquote",
    "br",
    "code",
    "del",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "img",
    "input",
    "li",
    "ol",
    "p",
    "pre",
    "span",
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
  ],
  ALLOWED_ATTR: ["align", "alt", "checked", "class", "disabled", "href", "src", "start", "title", "type"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escaped = (text) =>
  text.replace(/[&<>"]/g, (mark) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[mark]);

marked.use({
  gfm: true,
  extensions: MATHS.map((math) => ({
    ...math,
    renderer: ({ text, display }) => `<code class="math${display ? " display" : ""}">${escaped(text)}</code>`,
  })),
  renderer: {
    html: (token) => (/^<br\s*\/?>$/i.test(token.text.trim()) ? "<br>" : escaped(token.text)),
  },
});

/**
 * Render tokens. `outline.level` is the level of the previous heading; `coloured` enables syntax highlighting.
 * @param {any} tokens
 */
function html(tokens, outline, coloured = true) {
  const fragment = DOMPurify.sanitize(marked.parser(tokens), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    const url = webUrl(link.getAttribute("href"));
    if (!url) {
      link.replaceWith(...link.childNodes);
      continue;
    }
    link.href = url;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const image of fragment.querySelectorAll("img")) image.replaceWith(pictured(image));
  for (const box of fragment.querySelectorAll("input"))
    box.replaceWith(h("span", { class: "task" }, box.checked ? "☑ " : "☐ "));
  // Each block gets the direction of its own text.
  for (const block of fragment.children) block.dir = "auto";
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    // Answers start below the page's h1, without skipping levels.
    const depth = Number(heading.tagName[1]);
    outline.level = Math.min(outline.level + 1, depth + 1, 6);
    heading.replaceWith(h(`h${outline.level}`, { class: `level-${depth}`, dir: "auto" }, ...heading.childNodes));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const region = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" });
    table.replaceWith(region);
    region.append(table);
  }
  for (const math of fragment.querySelectorAll("code.math"))
    math.replaceWith(mathView(math.textContent, math.classList.contains("display")));
  for (const code of fragment.querySelectorAll("pre > code")) {
    const language = /language-([\w+#-]+)/.exec(code.className)?.[1] ?? "";
    code.parentElement.replaceWith(codeBlock(code.textContent, language, coloured));
  }
  return fragment;
}

// Loading a remote image would tell its host about the reader, so it becomes a link. `data:` images are shown.
function pictured(image) {
  const source = image.getAttribute("src") ?? "";
  const label = image.alt || "image";
  if (/^data:image\/(png|jpeg|gif|webp);base64,/.test(source)) return pictureView(source, label);
  const url = webUrl(source);
  return url ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, `Image: ${label}`) : label;
}

/**
 * Renders a growing or complete text. Complete blocks are rendered once. The open block is re-rendered as it grows; if it
 * is long, it is appended to as raw text until it is complete. A frame takes about `SLICE`, or one block: the text is
 * appended in parts whose length follows the speed of the machine.
 */
export class GrowingMarkdown {
  constructor() {
    this.node = h("div", { class: "prose" });
    this.tail = h("div", { class: "tail" });
    this.node.append(this.tail);
    this.source = ""; // the whole text so far
    this.taken = 0; // characters of `source` in `text`
    this.text = "";
    this.open = ""; // the open block
    this.raw = false; // the open block is too long to re-render each frame
    this.pace = 2_000; // characters per append
    this.stale = false; // the open block has grown since it was rendered
    this.outline = { level: 1 };
    this.queue = null; // remaining tokens of the final rendering
    this.complete = false;
    this.ended = false; // rendering is complete
    this.step = () => this.#step();
  }

  /** Set the text so far; `complete` ends it. */
  update(source, complete = false) {
    if (this.complete) return;
    this.source = source;
    this.complete = complete;
    this.#step();
  }

  #step() {
    const began = performance.now();
    while (!this.ended) {
      if (this.queue) this.#renderQueued();
      else if (this.complete && this.taken === 0 && this.source.length <= LONGEST_WHOLE) this.#begin(this.source);
      else if (this.taken < this.source.length) this.#append();
      else if (this.complete) this.#finish();
      else break;
      if (performance.now() - began > SLICE) {
        if (!this.ended) schedule(this.step);
        break;
      }
    }
    if (this.stale && !this.queue && !this.ended) this.#renderOpen();
  }

  // Append the next part of the text, and adapt the length of the parts.
  #append() {
    const began = performance.now();
    let end = Math.min(this.taken + this.pace, this.source.length);
    if (/[\ud800-\udbff]/.test(this.source[end - 1])) end = Math.min(end + 1, this.source.length); // keep surrogate pairs together
    const added = shown(this.source.slice(this.taken, end));
    this.taken = end;
    this.text += added;
    this.open += added;
    if (this.raw && !added.includes("\n")) {
      this.#appendRaw(added);
      return;
    }
    // Block tokens suffice to find complete blocks; inline lexing is slow.
    const blocks = new Lexer(marked.defaults).blockTokens(this.open, []);
    let last = blocks.length - 1;
    while (last > 0 && blocks[last].type === "space") last--;
    const length = blocks.slice(0, last).reduce((sum, token) => sum + token.raw.length, 0);
    if (length) {
      this.tail.before(html(marked.lexer(this.open.slice(0, length)), this.outline));
      this.open = this.open.slice(length);
      this.raw = false;
      this.tail.replaceChildren();
    }
    if (this.raw) this.#appendRaw(added);
    else this.stale = true;
    const took = performance.now() - began;
    if (took > SLICE / 2) this.pace = Math.max(this.pace / 2, SHORTEST_APPEND);
    else if (took < SLICE / 4) this.pace = Math.min(this.pace * 2, LONGEST_APPEND);
  }

  // Render the open block, or begin to show it as raw text.
  #renderOpen() {
    this.stale = false;
    this.raw = this.open.length > LONGEST_TAIL;
    this.tail.classList.toggle("raw", this.raw);
    this.tail.replaceChildren();
    if (this.raw) {
      this.#appendRaw(this.open);
      return;
    }
    this.tail.append(html(marked.lexer(this.open), { ...this.outline }, false)); // highlighting follows when it is complete
  }

  // Split raw text into small blocks, so that the browser re-lays out only the last one.
  #appendRaw(text) {
    const last = this.tail.lastElementChild?.firstChild;
    let cut = last ? text.length : 0;
    if (last?.length > LONGEST_BLOCK) cut = text.indexOf("\n") + 1 || text.length;
    if (cut) last.appendData(text.slice(0, cut));
    if (cut < text.length) this.tail.append(h("div", {}, text.slice(cut)));
  }

  // Render the open block, or the whole text if it defines link references, which can affect earlier blocks.
  #finish() {
    const defines = /^ {0,3}\[[^\]]+\]:/m.test(this.text);
    if (defines && this.text.length <= LONGEST_WHOLE) this.#begin(this.text);
    else if (this.open.length <= LONGEST_OPEN) this.queue = marked.lexer(this.open);
    else this.ended = true;
    if (this.queue) this.tail.remove();
  }

  #begin(text) {
    this.outline.level = 1;
    this.queue = marked.lexer(shown(text));
    this.node.replaceChildren();
  }

  #renderQueued() {
    const token = this.queue.shift();
    if (token) this.node.append(html([token], this.outline));
    else this.ended = true;
  }
}

const shown = (text) => plain(text).replaceAll("\r", "");
