import assert from "node:assert/strict";
import { test } from "node:test";
import { LiveResponse } from "../../../app/studio/js/lib/live.js";

test("live response keeps the headers of an error event after the response has failed", () => {
  const live = new LiveResponse();
  live.apply({
    type: "error",
    error: { code: "rate_limit_exceeded", message: "Slow down.", headers: { "Retry-After": "1" } },
  });
  live.apply({
    type: "response.failed",
    response: { status: "failed", output: [], error: { code: "rate_limit_exceeded", message: "Slow down." } },
  });
  assert.equal(live.ended, true);
  assert.equal(live.error.headers["Retry-After"], "1");
});

test("live response adds the deltas of a text to its part", () => {
  const live = new LiveResponse();
  live.apply({ type: "response.output_item.added", output_index: 0, item: { type: "message", content: [] } });
  live.apply({
    type: "response.content_part.added",
    output_index: 0,
    content_index: 0,
    part: { type: "output_text", text: "" },
  });
  for (const delta of ["Hel", "lo"])
    live.apply({ type: "response.output_text.delta", output_index: 0, content_index: 0, delta });
  assert.equal(live.items[0].item.content[0].text, "Hello");
});
