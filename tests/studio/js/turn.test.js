import assert from "node:assert/strict";
import { test } from "node:test";
import { nextRequest, Turn, withText, writtenText } from "../../../app/studio/js/talk/turn.js";

const message = (text) => ({ type: "message", role: "user", content: [{ type: "input_text", text }] });
const answer = (text) => ({ type: "message", role: "assistant", content: [{ type: "output_text", text }] });

function ended(
  id,
  { store = true, output = [answer("Yes.")], status = "completed", input = [message("Hi")], ...rest } = {},
) {
  const request = { model: "m", input, ...rest };
  return Turn.stored({ response: { id, status, store, output, created_at: 1 }, input }, request);
}

test("turn passes through waiting, streaming and ended", () => {
  const turn = new Turn({ input: [message("Hi")] });
  assert.equal(turn.state, "waiting");
  turn.live.apply({ type: "response.output_item.added", output_index: 0, item: answer("") });
  assert.equal(turn.state, "streaming");
  turn.live.apply({ type: "response.completed", response: { id: "r", status: "completed", store: true, output: [] } });
  turn.running = false;
  assert.equal(turn.state, "ended");
});

test("turn without an ended response has failed once it no longer runs", () => {
  const turn = new Turn({ input: [] });
  turn.running = false;
  assert.equal(turn.state, "failed");
  assert.equal(turn.continuable, false);
});

test("running turn offers only its inspection", () => {
  assert.deepEqual([...new Turn({ input: [message("Hi")] }).actions({ last: true, busy: true })], ["inspect"]);
});

test("only the last turn accepts results of calls", () => {
  const call = { type: "function_call", call_id: "a", name: "f", arguments: "{}" };
  const turn = ended("r", { output: [call] });
  assert.ok(turn.actions({ last: true, busy: false }).has("answer"));
  assert.ok(!turn.actions({ last: false, busy: false }).has("answer"));
  assert.ok(!turn.actions({ last: true, busy: true }).has("answer"));
});

test("turn whose answer reached the token limit can be continued", () => {
  const turn = ended("r", { status: "incomplete" });
  turn.response.incomplete_details = { reason: "max_output_tokens" };
  assert.ok(turn.actions({ last: true, busy: false }).has("continue"));
  turn.response.incomplete_details = { reason: "content_filter" };
  assert.ok(!turn.actions({ last: true, busy: false }).has("continue"));
});

test("turn with only results of calls cannot be edited", () => {
  const turn = ended("r", { input: [{ type: "function_call_output", call_id: "a", output: "1" }] });
  assert.ok(!turn.actions({ last: true, busy: false }).has("edit"));
});

test("stopped background turn keeps its partial answer and can be continued", () => {
  const turn = ended("r", { status: "cancelled" });
  assert.equal(turn.state, "stopped");
  assert.ok(turn.actions({ last: true, busy: false }).has("copy"));
  assert.equal(nextRequest([turn], {}, [message("On")]).previous_response_id, "r");
});

test("next request continues a stored turn by its id", () => {
  const request = nextRequest([ended("r1"), ended("r2")], { model: "m" }, [message("Next")]);
  assert.equal(request.previous_response_id, "r2");
  assert.deepEqual(request.input, [message("Next")]);
});

test("next request skips a failed turn", () => {
  const request = nextRequest([ended("r1"), ended("r2", { status: "failed" })], {}, [message("Next")]);
  assert.equal(request.previous_response_id, "r1");
});

test("next request repeats the items of turns that are not stored", () => {
  const calls = ["a", "b"].map((id) => ({ type: "function_call", call_id: id, name: id, arguments: "{}" }));
  const outputs = ["a", "b"].map((id) => ({ type: "function_call_output", call_id: id, output: id }));
  const first = ended("r1", { store: false, output: calls });
  const second = ended("r2", { store: false, input: outputs });
  const request = nextRequest([first, second], {}, [message("Next")]);
  assert.deepEqual(request.input, [message("Hi"), ...calls, ...outputs, answer("Yes."), message("Next")]);
});

test("next request keeps the stored beginning of turns that are not stored", () => {
  const first = ended("r1");
  const second = ended("r2", { store: false, previous_response_id: "r1", input: [message("Two")] });
  const request = nextRequest([first, second], {}, [message("Next")]);
  assert.equal(request.previous_response_id, "r1");
  assert.deepEqual(request.input, [message("Two"), answer("Yes."), message("Next")]);
});

test("results of parallel calls are sent once all are given", () => {
  const calls = ["a", "b"].map((id) => ({ type: "function_call", call_id: id, name: id, arguments: "{}" }));
  const turn = ended("r", { output: calls });
  assert.equal(turn.give(calls[0], "first"), null);
  assert.equal(turn.give(calls[0], "first again"), null);
  assert.deepEqual(
    turn.give(calls[1], "second").map(({ call_id, output }) => [call_id, output]),
    [
      ["a", "first again"],
      ["b", "second"],
    ],
  );
});

test("edited text keeps the attachments of its message", () => {
  const image = { type: "input_image", image_url: "data:image/png;base64,AA" };
  const items = [{ role: "user", content: [image, { type: "input_text", text: "old" }] }];
  assert.equal(writtenText(items), "old");
  assert.deepEqual(withText(items, "new")[0].content, [image, { type: "input_text", text: "new" }]);
});
