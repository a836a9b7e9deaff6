import assert from "node:assert/strict";
import { test } from "node:test";
import { EventLog } from "../../../app/studio/js/lib/log.js";
import { statsOf } from "../../../app/studio/js/parts/stats.js";

const live = {
  response: { usage: { input_tokens: 9, output_tokens: 101, output_tokens_details: { reasoning_tokens: 50 } } },
};

test("stats of a stored turn are the stored measures", () => {
  const measures = { seconds: 2, first_token_seconds: 1 };
  assert.deepEqual(statsOf({ log: null, live, measures }), [
    ["First token", "1.00 s"],
    ["Total", "2.00 s"],
    ["Tokens per second", "100"],
    ["Events", "–"],
    ["Input tokens", "9"],
    ["Output tokens", "101 (50 reasoning)"],
  ]);
});

test("stats of a turn that is streamed are those of its events", () => {
  const log = new EventLog();
  log.add("{}", { type: "response.created" });
  const stats = Object.fromEntries(statsOf({ log, live: { response: null } }));
  assert.equal(stats.Events, "1");
  assert.equal(stats.Total, "–");
});
