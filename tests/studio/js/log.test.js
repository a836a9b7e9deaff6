import assert from "node:assert/strict";
import { test } from "node:test";
import { segments, steps } from "../../../app/studio/js/lib/segments.js";
import { listQuery, metadataFilter, readQuery, writeQuery } from "../../../app/studio/js/responses/address.js";
import { withoutMarks } from "../../../app/studio/js/responses/columns.js";
import { Log, scaleOf } from "../../../app/studio/js/responses/log.js";
import { rowsOf } from "../../../app/studio/js/responses/thread.js";

const entry = (number, more = {}) => ({ id: `resp_${number}`, created_at: number, status: "completed", ...more });
const page = (entries, has_more = false) => ({ data: entries, has_more, last_id: entries.at(-1)?.id ?? null });
const ids = (entries) => entries.map(({ id }) => id.replace("resp_", "")).join(" ");

test("log shows new responses above the others", () => {
  const log = new Log();
  log.refresh(page([entry(2), entry(1)]));
  assert.equal(log.refresh(page([entry(3), entry(2), entry(1)])), true);
  assert.equal(ids(log.entries), "3 2 1");
});

test("log holds new responses back until they are released", () => {
  const log = new Log();
  log.refresh(page([entry(1)]));
  log.refresh(page([entry(3), entry(2), entry(1)]), { hold: true });
  assert.equal(ids(log.entries), "1");
  assert.equal(log.held.length, 2);
  log.release();
  assert.equal(ids(log.entries), "3 2 1");
  assert.equal(log.held.length, 0);
});

test("log updates a response in its place and keeps the others as they are", () => {
  const log = new Log();
  log.refresh(page([entry(2, { status: "in_progress" }), entry(1)]));
  const [, kept] = log.entries;
  assert.equal(log.refresh(page([entry(2), entry(1)]), { hold: true }), true);
  assert.equal(log.entries[0].status, "completed");
  assert.equal(log.entries[1], kept);
  assert.equal(log.refresh(page([entry(2), entry(1)])), false);
});

test("log keeps older pages when the newest page is read again", () => {
  const log = new Log();
  log.refresh(page([entry(4), entry(3)], true));
  log.extend(page([entry(2), entry(1)]));
  log.refresh(page([entry(5), entry(4)], true));
  assert.equal(ids(log.entries), "5 4 3 2 1");
  assert.equal(log.more, false);
});

test("log begins anew when more responses came than a page has", () => {
  const log = new Log();
  log.refresh(page([entry(2), entry(1)]));
  log.refresh(page([entry(9), entry(8)], true));
  assert.equal(ids(log.entries), "9 8");
  assert.equal(log.more, true);
  assert.equal(log.last, "resp_8");
});

test("log forgets a response that is listed no longer", () => {
  const log = new Log();
  log.refresh(page([entry(3), entry(2), entry(1)]));
  assert.equal(log.refresh(page([entry(3), entry(1)]), { hold: true }), true);
  assert.equal(ids(log.entries), "3 1");
});

test("log sorts by the time that it shows, and missing values last", () => {
  const log = new Log();
  log.refresh(page([entry(1, { seconds: 2 }), entry(3, { seconds: null }), entry(2, { seconds: 5 })]));
  assert.equal(ids(log.sorted()), "3 2 1");
  assert.equal(ids(log.sorted("-duration")), "2 1 3");
  assert.equal(ids(log.sorted("duration")), "1 2 3");
});

test("segments of one answer are the queue, the wait and the output", () => {
  const parts = segments({ seconds: 2, first_token_seconds: 0.5, queued_seconds: 0.2, steps: [], status: "completed" });
  assert.deepEqual(parts, [
    { kind: "queue", start: 0, end: 0.2 },
    { kind: "wait", start: 0.2, end: 0.5 },
    { kind: "model", start: 0.5, end: 2 },
  ]);
});

test("segments of rounds leave no gap without a name", () => {
  const steps = [
    { kind: "tools", start: 0, end: 1 },
    { kind: "model", start: 1, end: 2 },
    { kind: "tool", start: 2, end: 3, function: "add", status: "failed" },
    { kind: "tool", start: 2, end: 2.5, function: "echo" },
    { kind: "model", start: 3.5, end: 4 },
  ];
  const parts = segments({ seconds: 4.5, first_token_seconds: 1.5, queued_seconds: 0, steps, status: "completed" });
  assert.deepEqual(
    parts.map(({ kind, start, end }) => [kind, start, end]),
    [
      ["tools", 0, 1],
      ["wait", 1, 1.5],
      ["model", 1.5, 2],
      ["failed", 2, 3],
      ["between", 3, 3.5],
      ["model", 3.5, 4],
      ["between", 4, 4.5],
    ],
  );
});

test("steps name every gap above five milliseconds", () => {
  const listed = [
    { kind: "tools", start: 0, end: 1 },
    { kind: "model", start: 1, end: 2, round: 0, queued: 0.2, output_tokens: 7 },
    { kind: "tool", start: 2, end: 3, function: "add", status: "failed" },
    { kind: "model", start: 3.5, end: 4, round: 1 },
  ];
  assert.deepEqual(
    steps({ steps: listed, seconds: 4.5, first_token_seconds: 1.5 }).map(({ kind, start, end }) => [kind, start, end]),
    [
      ["tools", 0, 1],
      ["queue", 1, 1.2],
      ["wait", 1.2, 1.5],
      ["model", 1, 2],
      ["tool", 2, 3],
      ["between", 3, 3.5],
      ["model", 3.5, 4],
      ["between", 4, 4.5],
    ],
  );
});

test("segments of a running response are none", () => {
  assert.deepEqual(segments({ seconds: null, status: "in_progress" }), []);
});

test("scale of the waterfall ignores an outlier", () => {
  assert.equal(scaleOf([...Array(99).fill({ seconds: 1 }), { seconds: 60 }]), 1.25);
  assert.equal(scaleOf([{ seconds: 3 }]), 3);
  assert.equal(scaleOf([]), 1);
});

test("address keeps filters, times and the order", () => {
  const text = "?status=failed&metadata[team]=web&since=3600&sort=-duration";
  assert.equal(writeQuery(readQuery(new URLSearchParams(text))), text);
  assert.equal(writeQuery(readQuery(new URLSearchParams("?sort=-time&other=1"))), "");
});

test("list query has the time range as Unix times", () => {
  const query = readQuery(new URLSearchParams("?model=a%26b&since=3600"));
  assert.equal(listQuery(query, 7_230_500), "&model=a%26b&created_after=3600");
  const range = readQuery(new URLSearchParams("?from=2026-01-01T00:00Z&to=2026-01-02T00:00Z"));
  assert.equal(listQuery(range), "&created_after=1767225600&created_before=1767312000");
});

test("metadata filter is a name and a value", () => {
  assert.deepEqual(metadataFilter("team = web"), ["metadata[team]", "web"]);
  assert.equal(metadataFilter("team"), null);
});

const turn = (id, previous, at) => ({ text: id, response: { id, previous_response_id: previous, created_at: at } });

test("thread indents an edited and a retried turn beside the original, with what follows each", () => {
  const turns = [
    turn("one", null, 1),
    turn("two", "one", 2),
    turn("three", "two", 3),
    turn("two B", "one", 4),
    turn("two C", "one", 5),
  ];
  assert.deepEqual(
    rowsOf(turns).map(({ text, depth, fork }) => [text, depth, fork]),
    [
      ["one", 0, false],
      ["two", 1, true],
      ["three", 2, false],
      ["two B", 1, true],
      ["two C", 1, true],
    ],
  );
});

test("thread without its first turn starts where it is known", () => {
  assert.deepEqual(
    rowsOf([turn("b", "gone", 1), turn("c", "b", 2)]).map(({ depth }) => depth),
    [0, 0],
  );
});

test("marks of Markdown are removed from the beginning of an answer", () => {
  assert.equal(
    withoutMarks("# An **antiphon** is *call and response*, 2 * 3 * 4"),
    "An antiphon is call and response, 2 * 3 * 4",
  );
});
