// A button with a list of choices below it: a <details>, which closes on Escape, on a click elsewhere, and after a choice.

import { h, icon } from "./dom.js";

/**
 * @param {any} label
 * @param {any} body
 * @param {{name?: string, end?: boolean}} [options] `name` for screen readers, if the label is not enough; with `end` the
 *   right edges are aligned
 * @returns {any} a <details> with `.label(content)` to change the label
 */
export function menu(label, body, { name, end } = {}) {
  const text = h("span", { class: "menu-label" }, label);
  const summary = h("summary", { "aria-label": name }, text, icon("chevron-down"));
  const made = h("details", { class: `menu${end ? " end" : ""}` }, summary, h("div", { class: "menu-body" }, body));
  const close = () => {
    made.open = false;
  };
  const outside = ({ target }) => made.contains(target) || close();
  made.addEventListener("toggle", () => {
    document[made.open ? "addEventListener" : "removeEventListener"]("pointerdown", outside);
  });
  made.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !made.contains(relatedTarget)) close();
  });
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !made.open) return;
    event.stopPropagation();
    close();
    summary.focus();
  });
  made.label = (content) => text.replaceChildren(...[content].flat());
  made.close = close;
  return made;
}
