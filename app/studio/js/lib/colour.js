// Syntax highlighting by highlight.js, loaded on first use.

import "../../vendor/dompurify/purify.min.js";

const { DOMPurify } = /** @type {any} */ (globalThis);
const LONGEST = 30_000; // characters

/** Highlight an element's code. DOMPurify checks the generated spans. */
export async function colour(element, text, language) {
  if (!language || text.length > LONGEST) return;
  const { default: hljs } = await import("../../vendor/highlightjs/highlight.min.js");
  if (!hljs.getLanguage(language) || element.textContent !== text) return;
  const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
  element.replaceChildren(
    DOMPurify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }),
  );
}
