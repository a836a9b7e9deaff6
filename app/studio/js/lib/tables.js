// Tables, numbers and bars of the pages that show what happens.

import { h } from "./dom.js";
import { count } from "./text.js";

// A table that scrolls by itself where it is too wide. Columns are [name, is a number]; a row is a list of cells.
export function dataTable(label, columns, rows, { empty = "" } = {}) {
  if (!rows.length) return h("p", { class: "note" }, empty);
  const name = ([text, number]) => h("th", { scope: "col", class: number ? "number" : null }, text);
  const cell = (content, index) => h("td", { class: columns[index][1] ? "number" : null }, content);
  return h(
    "div",
    { class: "scroll table", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map(name))),
      h(
        "tbody",
        {},
        rows.map((cells) => h("tr", {}, cells.map(cell))),
      ),
    ),
  );
}

// Numbers with names: [name, number, what is beside it].
export const tiles = (entries) =>
  h(
    "dl",
    { class: "tiles" },
    entries.map(([name, number, note]) =>
      h(
        "div",
        { class: "tile" },
        h("dt", {}, name),
        h("dd", {}, h("span", { class: "tile-number" }, number), note ? h("span", { class: "tile-note" }, note) : null),
      ),
    ),
  );

// How much of an amount is used.
export function bar(label, used, amount, text) {
  const share = amount ? Math.min(1, used / amount) : 1;
  const fill = h("span", { class: "bar-fill" });
  fill.style.width = `${(share * 100).toFixed(1)}%`;
  return h(
    "div",
    { class: "bar-row" },
    h("div", { class: "bar-head" }, h("span", {}, label), h("span", { class: "bar-text" }, text)),
    h(
      "div",
      {
        class: `bar${share >= 1 ? " full" : share >= 0.8 ? " near" : ""}`,
        role: "meter",
        "aria-label": label,
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-valuenow": Math.round(share * 100),
        "aria-valuetext": text,
      },
      fill,
    ),
  );
}

export const card = (title, ...body) => h("section", { class: "card" }, h("h3", {}, title), body);

let currency = "";

/** @param {string} sign that `money` shows: `$`, `€`, `CHF`; "" for none */
export function setCurrency(sign) {
  currency = sign && /\p{L}$/u.test(sign) ? `${sign}\u00a0` : (sign ?? "");
}

/** An amount of money with two significant digits, or two decimals. */
export function money(amount) {
  if (amount === null || amount === undefined) return "–";
  if (amount === 0) return `${currency}0`;
  if (amount >= 100) return `${currency}${count(Math.round(amount))}`;
  if (amount >= 0.01) return `${currency}${amount.toFixed(2)}`;
  return `${currency}${decimal(amount, 2)}`;
}

/** The texts of an axis of costs, with as many digits as tell them apart. */
export function moneyTicks(amounts) {
  const steps = amounts.slice(1).map((amount, index) => Math.abs(amount - amounts[index]));
  const step = Math.min(...steps.filter(Boolean), 1);
  let digits = 0;
  while (digits < 8 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  return amounts.map((amount) =>
    amount >= 1000 && !digits ? `${currency}${short(amount)}` : `${currency}${amount.toFixed(digits)}`,
  );
}

// Without an exponent: 1.2e-7 is 0.00000012.
function decimal(amount, digits) {
  const places = Math.min(20, digits - 1 - Math.floor(Math.log10(amount)));
  return amount
    .toFixed(places)
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "");
}

export function bytes(number) {
  for (const [unit, size] of Object.entries({ GB: 2 ** 30, MB: 2 ** 20, KB: 2 ** 10 })) {
    if (number >= size) return `${(number / size).toFixed(number / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${count(number)} B`;
}

// 1,234,567 as 1.23M, where there is little room.
export function short(number) {
  for (const [unit, size] of Object.entries({ B: 1e9, M: 1e6, K: 1e3 })) {
    if (Math.abs(number) >= size) return `${Number((number / size).toPrecision(3))}${unit}`;
  }
  return `${Number(Number(number).toPrecision(3))}`;
}
