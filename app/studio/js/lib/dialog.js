// Ask before something is done that cannot be undone.

import { h } from "./dom.js";

// Resolves to true if the dialog's verb was chosen; Escape and Cancel are false.
export function confirmed({ title, text, verb, danger = true }) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const dialog = h("dialog", { "aria-labelledby": "confirm-title", "aria-describedby": "confirm-text" },
      h("form", { method: "dialog" }, h("h2", { id: "confirm-title" }, title), h("p", { id: "confirm-text" }, text),
        h("div", { class: "buttons" }, h("button", { value: "", autofocus: true }, "Cancel"), h("button", { value: "yes", class: danger ? "danger" : "primary" }, verb))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus({ preventScroll: true });
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
