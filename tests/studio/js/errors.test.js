import assert from "node:assert/strict";
import { test } from "node:test";
import { advice, resetText, retryAt, until } from "../../../app/studio/js/lib/errors.js";

const NOW = Date.parse("2026-11-27T16:18:00Z");

test("advice for an exhausted budget names the time of its reset", () => {
  const error = { status: 429, retryAfter: "27720", at: NOW };
  assert.equal(advice(error, NOW), "Resets tomorrow at 00:00 UTC (in 7 h 42 min).");
  assert.equal(resetText(Date.parse("2026-12-01T00:00:00Z"), NOW), "on 1 December at 00:00 UTC (in 79 h 42 min)");
});

test("advice for a rate limit counts down", () => {
  const error = { status: 429, retryAfter: "42", at: NOW };
  assert.equal(advice(error, NOW + 2_000), "Retry in 40 s.");
  assert.equal(advice(error, NOW + 50_000), "Retry now.");
  assert.equal(advice({ status: 429 }), "Retry in a minute.");
});

test("advice for an error that only a retry can help is empty", () => {
  assert.equal(advice({ code: "server_error" }), "");
  assert.match(advice({ status: 503 }), /^If the error persists/);
});

test("retry time is read from seconds and from dates", () => {
  assert.equal(retryAt({ retryAfter: "2", at: 1000 }), 3000);
  assert.equal(retryAt({ retryAfter: "Fri, 27 Nov 2026 16:18:00 GMT" }), NOW);
  assert.equal(retryAt({ retryAfter: "" }), null);
});

test("until chooses its unit by length", () => {
  assert.equal(until(NOW + 1_500, NOW), "in 2 s");
  assert.equal(until(NOW + 600_000, NOW), "in 10 min");
  assert.equal(until(NOW + 7_200_000, NOW), "in 2 h");
});
