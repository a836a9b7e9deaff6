// Modal dialogs.

import { key } from "./api.js";
import { button, byId, h } from "./dom.js";
import { plain } from "./text.js";

/**
 * Show a new modal dialog, and remove it once it is closed. Closing it also returns the focus; a handler of `close` would do
 * so too late, because later keys can come first.
 */
export function openModal(dialog) {
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// Ask before something that cannot be undone. Resolves to true if the dialog's verb was chosen; Escape and Cancel are false.
export function confirmed({ title, text, verb, danger = true }) {
  return ask(title, [h("p", { id: "dialog-text" }, text)], verb, danger ? "danger" : "primary", {
    "aria-describedby": "dialog-text",
  });
}

// Ask for a short text; resolves to "" if there is none.
export async function asked({ title, label, verb, value = "" }) {
  const field = h("input", {
    id: "dialog-field",
    value,
    autofocus: true,
    maxlength: 100,
    autocomplete: "off",
    required: true,
  });
  const given = await ask(
    title,
    [h("div", { class: "field" }, h("label", { for: "dialog-field" }, label), field)],
    verb,
    "primary",
  );
  return given ? field.value.trim() : "";
}

function ask(title, body, verb, kind, props = {}) {
  return new Promise((resolve) => {
    const cancel = button("Cancel", () => dialog.close(""), { autofocus: kind === "danger" });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title", ...props },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        body,
        h("div", { class: "buttons" }, cancel, h("button", { value: "yes", class: kind }, verb)),
      ),
    );
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
    openModal(dialog);
  });
}

// Ask for a key if the server has refused a request without one, or the key of this tab.
export function askForKey(error) {
  if (error.status !== 401) return;
  const dialog = byId("key-dialog");
  const refused = key.get() !== "";
  byId("key-reason").textContent = refused ? `The API key was not accepted. ${plain(error.message)}` : "";
  byId("key-state").textContent = refused ? "API key refused" : "API key";
  byId("key-remove").hidden = !refused;
  dialog.dataset.refused = "true";
  if (!dialog.open) dialog.showModal();
}
