import assert from "node:assert/strict";
import { test } from "node:test";
import {
  best,
  change,
  changeText,
  difference,
  ownTurns,
  resultOf,
  summary,
} from "../../../app/studio/js/compare/result.js";

const message = (text) => ({ type: "message", content: [{ type: "output_text", text }] });
const call = (args) => ({ type: "function_call", name: "f", arguments: args });
const response = (output, more = {}) => ({
  model: "m",
  status: "completed",
  output,
  usage: { input_tokens: 7, output_tokens: 3 },
  ...more,
});

test("results are the same if status, calls and text are", () => {
  const one = resultOf(response([message("Hi"), call('{"a": 1, "b": 2}')]));
  assert.equal(difference(one, resultOf(response([message("Hi"), call('{"b":2,"a":1}')]))), "same");
  assert.equal(difference(one, resultOf(response([message("Ho"), call('{"b":2,"a":1}')]))), "text");
  assert.equal(difference(one, resultOf(response([message("Hi"), call("{}")]))), "calls");
  assert.equal(difference(one, resultOf(response([], { status: "failed" }))), "status");
});

test("changes are shares, or factors from two on", () => {
  assert.equal(changeText(change(2, 2.5), "slower", "faster"), "25% slower");
  assert.equal(changeText(change(2, 1), "slower", "faster"), "2.0× faster");
  assert.equal(changeText(change(2, 2), "slower", "faster"), "no change");
  assert.equal(changeText(change(null, 2), "slower", "faster"), "");
});

test("summary adds only what both have", () => {
  const pairs = [
    [
      resultOf(response([message("Hi")]), { seconds: 2, cost: 0.5 }),
      resultOf(response([message("Hi")]), { seconds: 1, cost: 0.25 }),
    ],
    [resultOf(response([message("Hi")]), { seconds: 4 }), resultOf(response([message("Ho")]), { seconds: 1, cost: 9 })],
  ];
  const { number, same, seconds, cost } = summary(pairs);
  assert.deepEqual({ number, same, seconds, cost }, { number: 2, same: 1, seconds: [6, 2], cost: [0.5, 0.25] });
});

test("best is the smallest or the greatest, and none if all are equal", () => {
  assert.deepEqual(best([3, 1, null, 1]), [1, 3]);
  assert.deepEqual(best([3, 1], { greatest: true }), [0]);
  assert.deepEqual(best([2, 2]), []);
  assert.deepEqual(best([2, null]), []);
  assert.deepEqual(best([1.712, 1.708], { show: (value) => value.toFixed(2) }), []);
});

test("own turns are those after the common ones", () => {
  const chain = (...ids) => ids.map((id) => ({ response: { id }, input: [] }));
  const ids = (chains) => chains.map((turns) => turns.map((turn) => turn.response.id).join(" "));
  assert.deepEqual(ids(ownTurns([chain("a", "b", "c"), chain("a", "b", "d", "e")])), ["c", "d e"]);
  assert.deepEqual(ids(ownTurns([chain("a", "b"), chain("c", "d")])), ["a b", "c d"]);
  assert.deepEqual(ids(ownTurns([chain("a", "b")])), ["a b"]);
  assert.deepEqual(ids(ownTurns([chain("a"), chain("a")])), ["a", "a"]);
});
