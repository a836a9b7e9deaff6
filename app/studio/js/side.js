// The side: the views, the theme and the key; on a narrow screen a drawer.

import { byId } from "./lib/dom.js";

const THEME = "antiphon.theme";

export function setUpSide() {
  const side = byId("side");
  const set = (open) => {
    if (open === (side.dataset.open === "true")) return;
    side.dataset.open = open;
    byId("menu").setAttribute("aria-expanded", open);
    byId("main").inert = open;
    byId("menu").inert = open;
    (open ? byId("menu-close") : byId("menu")).focus({ preventScroll: true });
  };
  byId("menu").addEventListener("click", () => set(true));
  byId("menu-close").addEventListener("click", () => set(false));
  byId("shade").addEventListener("click", () => set(false));
  side.addEventListener("click", ({ target }) => target.closest("a") && set(false));
  side.addEventListener("keydown", ({ key }) => key === "Escape" && set(false));
  // A wide screen has no drawer that could be left open.
  matchMedia("(width >= 900px)").addEventListener("change", () => set(false));

  const theme = byId("theme");
  theme.addEventListener("change", ({ target }) => {
    if (target.value) localStorage.setItem(THEME, target.value);
    else localStorage.removeItem(THEME);
    setTheme(target.value);
  });
  setTheme(localStorage.getItem(THEME) ?? "");
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  for (const radio of byId("theme").elements) radio.checked = radio.value === theme;
}
