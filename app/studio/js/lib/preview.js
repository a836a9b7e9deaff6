// Previews of HTML, SVG and Mermaid in a sandboxed frame without network, storage or access to this page.

import { serverUrl } from "./api.js";
import { button, h, icon } from "./dom.js";

const KINDS = { html: "html", svg: "svg", mermaid: "mermaid" };
const TALLEST = 1200; // px

/**
 * Return a code block's preview button and its place; null for other languages. Diagrams are shown immediately.
 */
export function previewOf(text, language) {
  const kind = KINDS[language.toLowerCase()] ?? (language === "xml" && text.includes("<svg") ? "svg" : null);
  if (!kind) return null;
  const place = h("div", { class: "preview", hidden: true });
  const show = (shown) => {
    place.hidden = !shown;
    place.replaceChildren(...(shown ? [frame(kind, text)] : []));
    toggle.setAttribute("aria-pressed", String(shown));
  };
  const toggle = button([icon("eye"), "Preview"], () => show(place.hidden), {
    class: "quiet",
    "aria-pressed": "false",
  });
  if (kind === "mermaid") show(true);
  return { toggle, place };
}

function frame(kind, text) {
  const view = h("iframe", {
    src: serverUrl("studio/preview"),
    sandbox: "allow-scripts",
    title: `Preview of ${kind}`,
    loading: "lazy",
    referrerpolicy: "no-referrer",
  });
  const hear = ({ source, data }) => {
    if (!view.isConnected) removeEventListener("message", hear);
    if (source !== view.contentWindow) return;
    if (data?.ready) view.contentWindow.postMessage({ kind, text, dark: isDark() }, "*"); // the frame has no origin
    if (Number.isFinite(data?.height)) view.style.height = `${Math.min(Math.max(40, data.height), TALLEST)}px`;
  };
  addEventListener("message", hear);
  return view;
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
