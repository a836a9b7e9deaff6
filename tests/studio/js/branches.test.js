import assert from "node:assert/strict";
import { test } from "node:test";
import { newestFrom, siblings } from "../../../app/studio/js/talk/branches.js";

const entry = (id, previous, created) => ({ id, previous_response_id: previous, created_at: created });
const TREE = [entry("a", null, 1), entry("b", "a", 2), entry("c", "b", 3), entry("b2", "a", 4), entry("c2", "b2", 5)];

test("siblings continue the same response, oldest first", () => {
  assert.deepEqual(siblings(TREE, "b2"), ["b", "b2"]);
  assert.deepEqual(siblings(TREE, "c"), ["c"]);
});

test("siblings of a first turn are the recorded ones", () => {
  assert.deepEqual(siblings(TREE, "a"), ["a"]);
  assert.deepEqual(siblings(TREE, "a", ["z", "a"]), ["z", "a"]);
});

test("newest response of a branch is its last turn", () => {
  assert.equal(newestFrom(TREE, "b"), "c");
  assert.equal(newestFrom(TREE, "a"), "c2");
  assert.equal(newestFrom(TREE, "unknown"), "unknown");
});

test("newest response of turns within one second is the deepest", () => {
  assert.equal(newestFrom([entry("a", null, 1), entry("b", "a", 1)], "a"), "b");
});
