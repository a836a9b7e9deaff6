// Code blocks with syntax highlighting, copy, line wrap, download and, for some languages, a preview.

import { colour } from "./colour.js";
import { button, copyButton, h, icon } from "./dom.js";
import { previewOf } from "./preview.js";
import { saveText } from "./save.js";

const EXTENSIONS = {
  bash: "sh",
  css: "css",
  html: "html",
  javascript: "js",
  js: "js",
  json: "json",
  markdown: "md",
  mermaid: "mmd",
  py: "py",
  python: "py",
  rust: "rs",
  sh: "sh",
  sql: "sql",
  svg: "svg",
  ts: "ts",
  typescript: "ts",
  xml: "xml",
  yaml: "yaml",
};

/** @param {string} text @param {string} language @param {boolean} complete whether the block is complete */
export function codeBlock(text, language, complete) {
  const body = h("code", {}, text);
  const block = h("pre", { tabindex: 0, role: "group", "aria-label": `Code${language ? `, ${language}` : ""}` }, body);
  if (complete) colour(body, text, language);
  const wrap = button(
    icon("wrap-text"),
    () => wrap.setAttribute("aria-pressed", String(block.classList.toggle("wrapped"))),
    { class: "quiet only", "aria-label": "Wrap lines", title: "Wrap lines", "aria-pressed": "false" },
  );
  const save = () => saveText(text, `code.${EXTENSIONS[language.toLowerCase()] ?? "txt"}`);
  const preview = complete ? previewOf(text, language) : null;
  return h(
    "div",
    { class: "code", dir: "ltr" },
    h(
      "div",
      { class: "code-head" },
      h("span", {}, language || "code"),
      h("span", { class: "spring" }),
      preview?.toggle,
      wrap,
      button(icon("download"), save, { class: "quiet only", "aria-label": "Download code", title: "Download code" }),
      copyButton(text, "Code"),
    ),
    preview?.place,
    block,
  );
}
