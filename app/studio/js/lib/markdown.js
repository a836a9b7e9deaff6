// Markdown of a model, rendered safely, as it grows.
//
// What a model writes is hostile until proven otherwise: HTML in it is shown as text, DOMPurify takes from what
// Markdown makes all but a short list of elements and attributes, and nothing is loaded from elsewhere.

import purify from "../../vendor/dompurify/purify.es.mjs";
import hljs from "../../vendor/highlightjs/highlight.min.js";
import { marked } from "../../vendor/marked/marked.esm.js";
import { copyButton, h } from "./dom.js";
import { plain, webUrl } from "./text.js";

const DOMPurify = /** @type {any} */ (purify);

const LONGEST_TAIL = 4_000; // characters of an unfinished block that are rendered anew with each frame
const LONGEST_BLOCK = 1_000; // characters of a text node, after which the next line begins another
const LONGEST_WHOLE = 100_000; // characters of an answer that is rendered once more as a whole, when it is complete
const LONGEST_CODE = 30_000; // characters of a block of code that gets colours

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
  renderer: {
    html: (token) => (/^<br\s*\/?>$/i.test(token.text.trim()) ? "<br>" : escaped(token.text)),
    heading({ tokens, depth }) {
      // The page has its own headings above those of an answer.
      const level = Math.min(depth + 3, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

const html = (tokens, coloured = true) => dressed(DOMPurify.sanitize(marked.parser(tokens), ALLOWED), coloured);

function dressed(fragment, coloured) {
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
  for (const box of fragment.querySelectorAll("input")) {
    const done = box.checked;
    box.replaceWith(h("span", { class: "task" }, done ? "☑ " : "☐ "));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const region = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(region);
    region.append(table);
  }
  for (const code of fragment.querySelectorAll("pre > code")) code.parentElement.replaceWith(coded(code, coloured));
  return fragment;
}

// An image from elsewhere would tell its host that it is looked at: it is a link. One that is in the text is shown.
function pictured(image) {
  const source = image.getAttribute("src") ?? "";
  const label = image.alt || "image";
  if (/^data:image\/(png|jpeg|gif|webp);base64,/.test(source)) return h("img", { src: source, alt: label });
  const url = webUrl(source);
  return url ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, `Image: ${label}`) : label;
}

function coded(code, coloured) {
  const text = code.textContent;
  const language = /language-([\w+#-]+)/.exec(code.className)?.[1] ?? "";
  const body = h("code", {}, text);
  if (coloured && text.length < LONGEST_CODE && hljs.getLanguage(language)) colour(body, text, language);
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, language || "code"), copyButton(text, "Code")),
    h("pre", { tabindex: 0, role: "region", "aria-label": `Code${language ? `, ${language}` : ""}` }, body),
  );
}

// Colour code in place. The colours are spans that DOMPurify has looked at, as everything.
export function colour(element, text, language) {
  const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
  element.replaceChildren(
    DOMPurify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }),
  );
}

export function markdown(text) {
  return html(marked.lexer(plain(text)));
}

// A text that grows. Blocks that are complete are rendered once and stay; the last one is rendered anew as it grows,
// unless it is long: then it is appended to as it comes, and rendered when it is complete.
export class GrowingMarkdown {
  constructor() {
    this.node = h("div", { class: "prose" });
    this.tail = h("div", { class: "tail" });
    this.node.append(this.tail);
    this.text = "";
    this.open = ""; // what is in the tail
    this.raw = null; // the text nodes of a tail that is too long to render
  }

  append(text) {
    if (!text) return;
    const added = plain(text).replaceAll("\r", "");
    this.text += added;
    this.open += added;
    if (this.raw) {
      this.#appendRaw(added);
      return;
    }
    const tokens = marked.lexer(this.open);
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === "space") last--;
    const complete = tokens.slice(0, last);
    if (complete.length) {
      this.tail.before(html(complete));
      this.open = this.open.slice(complete.reduce((length, token) => length + token.raw.length, 0));
    }
    if (this.open.length > LONGEST_TAIL) {
      this.raw = true;
      this.tail.classList.add("raw");
      this.tail.replaceChildren();
      this.#appendRaw(this.open);
    } else {
      this.tail.replaceChildren(html(tokens.slice(last), false)); // colours come when a block is complete
    }
  }

  // Long text goes into many small blocks, so that the browser lays out only the last of them anew.
  #appendRaw(text) {
    const last = this.tail.lastElementChild?.firstChild;
    let cut = last ? text.length : 0;
    if (last?.length > LONGEST_BLOCK) cut = text.indexOf("\n") + 1 || text.length;
    if (cut) last.appendData(text.slice(0, cut));
    if (cut < text.length) this.tail.append(h("div", {}, text.slice(cut)));
  }

  // The text is complete: render it as a whole, so that references across blocks are resolved too.
  finish(text = this.text) {
    this.text = plain(text).replaceAll("\r", "");
    if (this.text.length <= LONGEST_WHOLE) {
      this.node.replaceChildren(html(marked.lexer(this.text)));
    } else if (this.raw && this.open.length <= LONGEST_WHOLE) {
      this.tail.replaceWith(html(marked.lexer(this.open)));
    }
  }
}
