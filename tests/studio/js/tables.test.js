import assert from "node:assert/strict";
import { test } from "node:test";
import { money, moneyTicks, setCurrency } from "../../../app/studio/js/lib/tables.js";

test("money has two decimals, or two significant digits", () => {
  assert.deepEqual([0, 1234.5, 12.346, 0.012, 0.00712, 0.00000012, null].map(money), [
    "0",
    "1,235",
    "12.35",
    "0.01",
    "0.0071",
    "0.00000012",
    "–",
  ]);
});

test("ticks of an axis of costs have the digits that tell them apart", () => {
  assert.deepEqual(moneyTicks([0, 0.025, 0.05, 0.075]), ["0.000", "0.025", "0.050", "0.075"]);
  assert.deepEqual(moneyTicks([0, 20, 40]), ["0", "20", "40"]);
});

test("money has the currency's sign, or its code before a space", () => {
  setCurrency("€");
  assert.equal(money(1.5), "€1.50");
  assert.deepEqual(moneyTicks([0, 0.5]), ["€0.0", "€0.5"]);
  setCurrency("CHF");
  assert.equal(money(1.5), "CHF\u00a01.50");
  setCurrency("");
  assert.equal(money(1.5), "1.50");
});
