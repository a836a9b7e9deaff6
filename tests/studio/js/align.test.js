import assert from "node:assert/strict";
import { test } from "node:test";
import { align, counts } from "../../../app/studio/js/parts/align.js";

const CHAT = "http://x/v1/chat/completions";

const lines = (request, translation) =>
  align(request, { url: CHAT, warnings: [], ...translation }).pairs.map(
    ({ kind, left, right }) =>
      `${left.map(({ path }) => path).join("+")} ${kind} ${right.map(({ path }) => path).join("+")}`,
  );

test("fields are the same, renamed, translated, kept here, dropped or added", () => {
  const request = {
    model: "m",
    input: "Hi",
    temperature: 0.2,
    max_output_tokens: 9,
    text: { format: {} },
    store: true,
    service_tier: "flex",
  };
  const body = {
    model: "m",
    messages: [{ role: "user", content: "Hi" }],
    temperature: 0.2,
    max_tokens: 9,
    response_format: {},
    stream: true,
  };
  const warnings = ["The parameter 'service_tier' is not supported by this backend and was ignored."];
  assert.deepEqual(lines(request, { body, warnings }), [
    "model same model",
    "input translated messages[0]",
    "temperature same temperature",
    "max_output_tokens renamed max_tokens",
    "text translated response_format",
    "store here ",
    "service_tier dropped ",
    " added stream",
  ]);
  const { pairs, warnings: rest } = align(request, { url: CHAT, body, warnings });
  assert.deepEqual(pairs.find(({ kind }) => kind === "dropped").notes, warnings);
  assert.deepEqual(rest, []);
  assert.equal(counts(pairs).same, 2);
});

test("instructions and earlier turns become messages before those of the input", () => {
  const request = {
    instructions: "Be brief.",
    previous_response_id: "resp_1",
    input: [{ role: "user", content: "Hi" }],
  };
  const body = {
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: "Hi" },
      { role: "assistant", content: "Hello" },
      { role: "user", content: "Hi" },
    ],
  };
  assert.deepEqual(lines(request, { body }), [
    "instructions translated messages[0]",
    "previous_response_id earlier messages[1]+messages[2]",
    "input[0] renamed messages[3]",
  ]);
});

test("reasoning and calls become one message, and outputs one each", () => {
  const request = {
    input: [
      { role: "user", content: [{ type: "input_text", text: "Weather?" }] },
      { type: "reasoning", content: [{ type: "reasoning_text", text: "hm" }] },
      { type: "function_call", call_id: "c1", name: "f", arguments: "{}" },
      { type: "function_call", call_id: "c2", name: "f", arguments: "{}" },
      { type: "function_call_output", call_id: "c1", output: "18 C" },
      { type: "function_call_output", call_id: "c2", output: "18 C" },
    ],
  };
  const body = {
    messages: [
      { role: "user", content: "Weather?" },
      { role: "assistant", reasoning: "hm", tool_calls: [{ id: "c1" }, { id: "c2" }] },
      { role: "tool", tool_call_id: "c1", content: "18 C" },
      { role: "tool", tool_call_id: "c2", content: "18 C" },
    ],
  };
  assert.deepEqual(lines(request, { body }), [
    "input[0] translated messages[0]",
    "input[1]+input[2]+input[3] translated messages[1]",
    "input[4] translated messages[2]",
    "input[5] translated messages[3]",
  ]);
});

test("parts of the Messages API belong to their own items, and dropped reasoning has its reason", () => {
  const request = {
    input: [
      { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: "hm" }] },
      { type: "function_call", call_id: "c1", name: "f", arguments: "{}" },
      { type: "function_call_output", call_id: "c1", output: "18 C" },
      { role: "user", content: [{ type: "input_text", text: "And Rome?" }] },
    ],
    reasoning: { effort: "high" },
  };
  const body = {
    messages: [
      { role: "assistant", content: [{ type: "tool_use", id: "c1", name: "f", input: {} }] },
      {
        role: "user",
        content: [
          { type: "tool_result", tool_use_id: "c1", content: [{ type: "text", text: "18 C" }] },
          { type: "text", text: "And Rome?" },
        ],
      },
    ],
    thinking: { type: "disabled" },
  };
  const reason = "Reasoning without a signature from this backend was dropped.";
  const translation = { url: "http://x/v1/messages", body, warnings: [reason] };
  assert.deepEqual(lines(request, translation), [
    "input[1] translated messages[0]",
    "input[2] translated messages[1].content[0]",
    "input[3] translated messages[1].content[1]",
    "input[0] dropped ",
    "reasoning translated thinking",
  ]);
  assert.deepEqual(align(request, translation).pairs[3].notes, [reason]);
});

test("tools are paired by name, and hosted ones stay here", () => {
  const request = {
    input: "Hi",
    tools: [
      { type: "mcp", server_label: "lab" },
      { type: "function", name: "f" },
    ],
  };
  const body = { messages: [{ role: "user", content: "Hi" }], tools: [{ type: "function", function: { name: "f" } }] };
  assert.deepEqual(lines(request, { body }).slice(1), ["tools[0] here ", "tools[1] translated tools[0]"]);
});

test("a warning about a part of a field is a note of this field", () => {
  const request = { input: "Hi", text: { verbosity: "low", format: { type: "text" } } };
  const body = { messages: [{ role: "user", content: "Hi" }], response_format: { type: "text" } };
  const warnings = [
    "The parameter 'text.verbosity' is not supported by this backend and was ignored.",
    "Something else.",
  ];
  const { pairs, warnings: rest } = align(request, { url: CHAT, body, warnings });
  assert.deepEqual(pairs[1].notes, [warnings[0]]);
  assert.deepEqual(rest, ["Something else."]);
});

test("requests of the Responses API are the same where nothing changed", () => {
  const item = { type: "message", role: "user", content: [{ type: "input_text", text: "Hi" }] };
  const pairs = lines(
    { model: "m", instructions: "Be brief.", input: [item] },
    { url: "http://x/v1/responses", body: { model: "m", instructions: "Be brief.", input: [item] } },
  );
  assert.deepEqual(pairs, ["model same model", "instructions same instructions", "input[0] same input[0]"]);
});
