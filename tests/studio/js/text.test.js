import assert from "node:assert/strict";
import { test } from "node:test";
import {
  ago,
  many,
  pretty,
  seconds,
  shortId,
  speed,
  tokens,
  webUrl,
  wholeSeconds,
} from "../../../app/studio/js/lib/text.js";

test("seconds choose their unit by length", () => {
  assert.equal(seconds(431), "431 ms");
  assert.equal(seconds(1650), "1.65 s");
  assert.equal(seconds(12_340), "12.3 s");
  assert.equal(seconds(59_990), "1 min");
  assert.equal(seconds(125_000), "2 min 5 s");
  assert.equal(seconds(27_771_000), "7 h 42 min");
  assert.equal(seconds(273_600_000), "3 d 4 h");
  assert.equal(wholeSeconds(400), "1 s");
  assert.equal(wholeSeconds(12_340), "12 s");
});

test("many uses the singular for one", () => {
  assert.equal(many(1, "token"), "1 token");
  assert.equal(many(2000, "token"), "2,000 tokens");
});

test("speed of too few tokens is not shown", () => {
  assert.equal(speed(5, { seconds: 2, first_token_seconds: 1 }), null);
  assert.equal(speed(101, { seconds: 2, first_token_seconds: 1 }), "100");
});

test("ago counts minutes and hours before it names the day", () => {
  assert.equal(ago(1000, 1_000_000), "now");
  assert.equal(ago(1000, 1_000_000 + 5 * 60_000), "5 min");
  assert.equal(ago(1000, 1_000_000 + 3 * 3_600_000), "3 h");
});

test("web URLs exclude scripts and data", () => {
  assert.equal(webUrl("javascript:alert(1)"), null);
  assert.equal(webUrl("data:text/html,x"), null);
  assert.equal(webUrl("https://example.com/"), "https://example.com/");
});

test("pretty shortens long base64", () => {
  assert.match(pretty({ data: "A".repeat(3000) }), /A{40}… \(3,000 characters\)/);
});

test("tokens name the cached share of the input", () => {
  const usage = { input_tokens: 400, output_tokens: 12 };
  assert.equal(tokens(usage), "400 tokens in, 12 out");
  assert.equal(
    tokens({ ...usage, input_tokens_details: { cached_tokens: 320 } }),
    "400 tokens in (80% cached), 12 out",
  );
});

test("short ids keep their prefix", () => {
  assert.equal(shortId("resp_7d8bd90e41fab969a55a7c33d55f5198bda87b8f"), "resp_7d8bd90e…");
  assert.equal(shortId("gpt-5"), "gpt-5");
});

test("base64 within a text is shortened", () => {
  const text = pretty({ text: `See ![a](data:image/png;base64,${"iVBORw0K".repeat(100)}) here` });
  assert.match(text, /See !\[a\]\(data:image\/png;base64,iVBORw0KiVBORw0K… \(822 characters\)\) here/);
});
