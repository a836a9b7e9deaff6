// The command palette: one field for views, commands and conversations.

import { getJson } from "./lib/api.js";
import { openModal } from "./lib/dialog.js";
import { h, icon } from "./lib/dom.js";
import { cut, plain } from "./lib/text.js";

const MOST = 12; // displayed choices

/** @typedef {{text: string, symbol: string, act: () => void}} Choice */

/**
 * Open the palette and run the chosen command.
 * @param {Choice[]} commands
 * @param {(id: string) => void} onopen called with the id of the chosen conversation
 */
export function openPalette(commands, onopen) {
  const field = h("input", {
    type: "search",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "palette-list",
    "aria-label": "Command or conversation",
    placeholder: "Command or conversation…",
    autocomplete: "off",
    autofocus: true,
  });
  const list = h("ul", { id: "palette-list", role: "listbox", "aria-label": "Choices" });
  const dialog = h("dialog", { class: "palette", "aria-label": "Find a command or a conversation" }, field, list);
  /** @type {Choice[]} */
  let shown = [];
  let chosen = 0;
  let asked = 0;

  const draw = () => {
    list.replaceChildren(
      ...shown.map(({ text, symbol }, index) =>
        h(
          "li",
          {
            id: `palette-${index}`,
            role: "option",
            "aria-selected": String(index === chosen),
            on: { click: () => choose(index) },
          },
          icon(symbol),
          h("span", { dir: "auto" }, plain(text)),
        ),
      ),
    );
    if (shown.length) field.setAttribute("aria-activedescendant", `palette-${chosen}`);
    else field.removeAttribute("aria-activedescendant");
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
  };
  const choose = (index) => {
    const { act } = shown[index] ?? {};
    if (!act) return;
    dialog.close();
    act();
  };
  const search = async () => {
    asked += 1;
    const mine = asked;
    const wanted = field.value.trim();
    const matching = commands.filter(({ text }) => text.toLowerCase().includes(wanted.toLowerCase()));
    shown = matching.slice(0, MOST);
    chosen = 0;
    draw();
    const query = new URLSearchParams([
      ["limit", String(MOST)],
      ["text", wanted],
    ]);
    const { data } = await getJson(`antiphon/chains?${query}`).catch(() => ({ data: [] }));
    if (mine !== asked) return;
    const found = data.map(({ id, title }) => ({
      text: cut(title || "(no text)", 80),
      symbol: "message-square",
      act: () => onopen(id),
    }));
    shown = [...shown, ...found].slice(0, MOST);
    draw();
  };
  field.addEventListener("input", search);
  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") choose(chosen);
    else if (step && shown.length) {
      chosen = (chosen + step + shown.length) % shown.length;
      draw();
    } else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  openModal(dialog);
  search();
}
