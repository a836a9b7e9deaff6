// A popup menu, one at a time.

import { button, h, icon } from "./dom.js";

let close = () => {};

/**
 * Create a button that opens a menu.
 * @param {{label: string, symbol: string, class?: string, tabindex?: number}} props
 * @param {() => {text: string, symbol?: string, act: () => void, danger?: boolean}[]} items called when it opens
 */
export function popupButton({ label, symbol, ...props }, items) {
  const opener = button(
    icon(symbol),
    () => (opener.getAttribute("aria-expanded") === "true" ? close() : open(opener, label, items())),
    {
      "aria-label": label,
      title: label,
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      ...props,
    },
  );
  return opener;
}

function open(opener, label, items) {
  close();
  const choose = (act) => () => {
    close();
    act();
  };
  const menu = h(
    "div",
    { class: "popup", role: "menu", "aria-label": label, popover: "manual" },
    items.map(({ text, symbol, act, danger }) =>
      button([symbol ? icon(symbol) : null, text], choose(act), {
        role: "menuitem",
        tabindex: -1,
        class: danger ? "danger" : null,
      }),
    ),
  );
  const buttons = [...menu.children];
  const outside = (event) => menu.contains(event.target) || opener.contains(event.target) || close();
  close = () => {
    close = () => {};
    document.removeEventListener("pointerdown", outside);
    opener.setAttribute("aria-expanded", "false");
    if (menu.contains(document.activeElement)) opener.focus({ preventScroll: true });
    menu.remove();
  };
  menu.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(/** @type {any} */ (document.activeElement));
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") close();
    else if (next !== undefined) buttons.at(next % buttons.length).focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.addEventListener("pointerdown", outside);
  opener.setAttribute("aria-expanded", "true");
  (opener.closest("main, aside") ?? document.body).append(menu);
  menu.showPopover();
  place(menu, opener.getBoundingClientRect());
  buttons[0]?.focus({ preventScroll: true });
}

// Place the menu below its button if there is room, else above, within the window.
function place(menu, { left, top, bottom }) {
  const { width, height } = menu.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  menu.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : Math.max(8, top - height - 4)}px`;
}
