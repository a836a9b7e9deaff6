import assert from "node:assert/strict";
import { test } from "node:test";
import { CLIENT, OptionError, OptionValues } from "../../../app/studio/js/talk/options.js";

const ABOUT = {
  file_search: true,
  background: true,
  tools: [{ type: "web_search" }, { type: "mcp", server_label: "lab" }, { type: "shell" }],
};
const FUNCTION = { type: "function", name: "f", parameters: { type: "object" } };
const SCHEMA = { type: "object", properties: {}, title: "A Person" };

const REQUESTS = {
  "nothing but the defaults": { background: true },
  "instructions and sampling": {
    instructions: "Be a pirate.",
    temperature: 0,
    top_p: 0.5,
    max_output_tokens: 64,
    background: true,
  },
  "hosted tools": {
    tools: [
      { type: "file_search", vector_store_ids: ["vs_1"] },
      { type: "web_search" },
      { type: "mcp", server_label: "lab", allowed_tools: ["add"] },
    ],
    include: ["file_search_call.results", "web_search_call.action.sources"],
    background: true,
  },
  "functions and a tool of another server": {
    tools: [FUNCTION, { type: "mcp", server_label: "other", server_url: "https://example.com/mcp" }],
    tool_choice: "required",
    background: true,
  },
  "a hosted tool with settings of its own": {
    tools: [{ type: "web_search", search_context_size: "high" }],
    background: true,
  },
  "structured output": {
    text: { format: { type: "json_schema", name: "A_Person", schema: SCHEMA, strict: true } },
    background: true,
  },
  "a format without strictness": {
    text: { format: { type: "json_schema", name: "x", schema: SCHEMA, strict: false } },
    background: true,
  },
  reasoning: { reasoning: { effort: "high", summary: "auto" }, background: true },
  "a prompt template": { prompt: { id: "greeting", version: "2", variables: { name: "Ada" } }, background: true },
  "parameters without a field": {
    seed: 7,
    tool_choice: { type: "function", name: "f" },
    metadata: { a: "b" },
    background: true,
  },
  "nothing stored": { store: false, truncation: "auto" },
};

for (const [name, request] of Object.entries(REQUESTS)) {
  test(`options from a request with ${name} make the same request`, () => {
    const before = JSON.stringify(request);
    assert.deepEqual(OptionValues.from(request, ABOUT).request(), request);
    assert.equal(JSON.stringify(request), before);
  });
}

test("options of one turn and the studio's own metadata are not restored", () => {
  const request = {
    model: "m",
    input: [],
    stream: true,
    previous_response_id: "r",
    background: true,
    metadata: CLIENT,
  };
  assert.deepEqual(OptionValues.from(request, ABOUT).set(), []);
});

test("instructions that come from a template are not repeated beside it", () => {
  const options = OptionValues.from({ prompt: { id: "p" }, instructions: "Greet Ada.", background: true }, ABOUT);
  assert.deepEqual(options.request(), { prompt: { id: "p" }, background: true });
});

test("options are described in words and switched off one by one", () => {
  const options = OptionValues.from(
    { background: true, instructions: "x", temperature: 0.5, tools: [{ type: "mcp", server_label: "lab" }, FUNCTION] },
    ABOUT,
  );
  assert.deepEqual(
    options.set().map(({ text }) => text),
    ["lab (MCP)", "instructions", "temperature: 0.5", "1 function"],
  );
  for (const { field } of options.set()) options.unset(field);
  assert.deepEqual(options.set(), []);
  assert.deepEqual(options.request(), { background: true });
});

test("server without background runs is not asked for one", () => {
  assert.deepEqual(new OptionValues({}, { background: false }).request(), {});
});

test("field that is not JSON is named", () => {
  const options = new OptionValues({ fields: { schema: "{" } }, ABOUT);
  assert.throws(
    () => options.request(),
    (error) => error instanceof OptionError && error.field === "schema",
  );
});

test("file search without a vector store is named", () => {
  const options = new OptionValues({ tools: { file_search: {} } }, ABOUT);
  assert.throws(() => options.request(), { field: "tool-file_search" });
});
