// Global keyboard shortcuts and their help dialog.

import { openModal } from "./lib/dialog.js";
import { byId, h } from "./lib/dom.js";

/** @type {[string[], string][]} keys and their descriptions */
const HELP = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "Start a new line"],
  [["↑"], "Edit the last message, if the field is empty"],
  [["Esc"], "Stop the answer, or close a panel"],
  [["/"], "Search"],
  [["Ctrl", "K"], "Find a command or a conversation"],
  [["Ctrl", "Shift", "O"], "New conversation"],
  [["?"], "Show these shortcuts"],
];

const SEARCHES = { talk: "conversation-search", responses: "search-text", files: "store-query" };

/** @param {{onescape: () => boolean, begin: () => void, palette: () => void, view: () => string}} acts */
export function setUpKeys({ onescape, begin, palette, view }) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const control = event.ctrlKey || event.metaKey;
    const name = event.key.toLowerCase();
    if (control && !event.altKey && name === "k") palette();
    else if (control && event.shiftKey && name === "o") begin();
    else if (event.key === "Escape") {
      if (!onescape()) return;
    } else if (control || event.altKey || isWritten(event.target)) return;
    else if (event.key === "/") {
      const field = byId(SEARCHES[view()] ?? "");
      if (!field) return;
      field.focus();
    } else if (event.key === "?") showHelp();
    else return;
    event.preventDefault();
  });
}

// Whether an element accepts text input.
function isWritten(element) {
  return (
    element.matches("textarea, select, [contenteditable]") ||
    (element.matches("input") && !element.matches("[type=checkbox], [type=radio]"))
  );
}

export function showHelp() {
  const dialog = h(
    "dialog",
    { "aria-labelledby": "shortcuts-title" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "shortcuts-title" }, "Keyboard shortcuts"),
      h(
        "dl",
        { class: "shortcuts" },
        HELP.flatMap(([keys, text]) => [
          h(
            "dt",
            {},
            keys.map((key) => h("kbd", {}, key)),
          ),
          h("dd", {}, text),
        ]),
      ),
      h("div", { class: "buttons" }, h("button", { class: "primary", autofocus: true }, "Close")),
    ),
  );
  openModal(dialog);
}
