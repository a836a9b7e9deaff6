import assert from "node:assert/strict";
import { test } from "node:test";
import { compact } from "../../../app/studio/js/lib/compact.js";

test("compact JSON has short objects on one line", () => {
  const value = {
    role: "assistant",
    tool_calls: [{ id: "call_7", function: { name: "get_weather", arguments: "{}" } }],
    empty: {},
  };
  assert.equal(
    compact(value, 64),
    [
      '{"role": "assistant",',
      ' "tool_calls": [{"id": "call_7",',
      '     "function": {"name": "get_weather", "arguments": "{}"}}],',
      ' "empty": {}}',
    ].join("\n"),
  );
  assert.deepEqual(JSON.parse(compact(value, 20)), value);
  assert.equal(compact({ a: 1, b: 2, c: "x".repeat(20) }, 30), `{"a": 1, "b": 2,\n "c": "${"x".repeat(20)}"}`);
  assert.equal(compact([]), "[]");
  assert.equal(compact("a"), '"a"');
});
