// openai for Node, versions 7 and 6: the package is named by PACKAGE.

import { z } from "zod";

import { ADD, ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, weather } from "../drive/scenarios.mjs";

const { PACKAGE } = process.env;
const { default: OpenAI } = await import(PACKAGE);
const { zodResponsesFunction, zodTextFormat } = await import(`${PACKAGE}/helpers/zod`);

const client = new OpenAI();
const model = MODEL;
const format = zodTextFormat(z.object({ name: z.string(), born: z.int() }), "person");
const tool = {
  type: "function",
  name: "weather",
  description: "The weather of a place.",
  parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
  strict: false,
};

const usage = ({ usage }) => [usage.input_tokens, usage.output_tokens];
const user = (content) => ({ role: "user", content });

// Call what a response calls.
const results = ({ output }) =>
  output
    .filter((item) => item.type === "function_call")
    .map((item) => ({
      type: "function_call_output",
      call_id: item.call_id,
      output: weather(JSON.parse(item.arguments).place),
    }));

function reasoning({ output }) {
  const [item, ...others] = output.filter((item) => item.type === "reasoning");
  if (others.length) throw new Error("There is more than one thought.");
  return [...item.summary, ...(item.content ?? [])].map((part) => part.text).join("");
}

// The pieces of the events of a name, and the response that the helper has put together of all of them.
async function streamed(params, name) {
  const pieces = [];
  const events = client.responses.stream({ model, ...params });
  for await (const event of events) if (event.type === name) pieces.push(event.delta);
  return { pieces, response: await events.finalResponse() };
}

// An item as it came, without what the helper has read into it.
const plain = ({ parsed_arguments, ...item }) =>
  item.type === "message" ? { ...item, content: item.content.map(({ parsed, ...part }) => part) } : item;

// An MCP server that is asked by the server, and what it said; `decided` decides on what is to be approved.
const mcp = { type: "mcp", server_label: "lab", require_approval: "never" };
const asking = { ...mcp, require_approval: "always" };
const hostedResults = ({ output }) => output.filter((item) => item.type === "mcp_call").map((item) => item.output);
const decided = ({ output }, approve) =>
  output
    .filter((item) => item.type === "mcp_approval_request")
    .map(({ id }) => ({ type: "mcp_approval_response", approval_request_id: id, approve }));
const hostedShown = (response) => ({ text: response.output_text, results: hostedResults(response) });

await play({
  async text() {
    const response = await client.responses.create({ model, input: HELLO });
    return { text: response.output_text, usage: usage(response), status: response.status };
  },

  async stream() {
    const { pieces, response } = await streamed({ input: HELLO }, "response.output_text.delta");
    return { pieces, text: response.output_text, usage: usage(response) };
  },

  async stream_raw() {
    const types = [];
    for await (const event of await client.responses.create({ model, input: HELLO, stream: true })) types.push(event.type);
    return types;
  },

  async tools() {
    const first = await client.responses.create({ model, input: WEATHER, tools: [tool] });
    const input = results(first);
    const answer = await client.responses.create({ model, input, tools: [tool], previous_response_id: first.id });
    return { text: answer.output_text };
  },

  async tools_streamed() {
    const input = [user(WEATHER)];
    const first = await streamed({ input, tools: [tool] }, "response.function_call_arguments.delta");
    const written = first.response.output.map((item) => item.arguments).join("");
    if (first.pieces.join("") !== written) throw new Error(`${first.pieces.join("")} is not ${written}`);
    input.push(...first.response.output, ...results(first.response));
    return { text: (await streamed({ input, tools: [tool] })).response.output_text };
  },

  async structured() {
    const response = await client.responses.parse({ model, input: WHO, text: { format } });
    return response.output_parsed;
  },

  async structured_streamed() {
    return (await streamed({ input: WHO, text: { format } })).response.output_parsed;
  },

  async turns() {
    const first = await client.responses.create({ model, input: NAME });
    const second = await client.responses.create({ model, input: ASK_NAME, previous_response_id: first.id });
    return { text: second.output_text };
  },

  async turns_replayed() {
    const first = await client.responses.parse({ model, input: NAME });
    const second = await client.responses.create({ model, input: [user(NAME), ...first.output, user(ASK_NAME)] });
    return { text: second.output_text };
  },

  async thinking() {
    const response = await client.responses.create({ model, input: SUM });
    return { text: response.output_text, reasoning: reasoning(response) };
  },

  async thinking_streamed() {
    const { pieces, response } = await streamed({ input: SUM }, "response.reasoning_text.delta");
    if (pieces.join("") !== reasoning(response)) throw new Error(pieces.join(""));
    return { text: response.output_text, reasoning: reasoning(response) };
  },

  async thinking_summarized() {
    const params = { input: SUM, reasoning: { summary: "auto" } };
    const { pieces, response } = await streamed(params, "response.reasoning_summary_text.delta");
    return { text: response.output_text, reasoning: reasoning(response), pieces };
  },

  // Nothing is stored: the thoughts go back to the server with the call that they led to.
  async thinking_sealed() {
    const given = { model, tools: [tool], store: false, include: ["reasoning.encrypted_content"] };
    const input = [user(WEATHER)];
    const first = await client.responses.create({ input, ...given });
    const sealed = first.output.filter((item) => item.type === "reasoning").map((item) => item.encrypted_content);
    const answer = await client.responses.create({ input: [...input, ...first.output, ...results(first)], ...given });
    return { text: answer.output_text, sealed: sealed.length === 1 && Boolean(sealed[0]) };
  },

  // A tool made of a schema of zod, whose arguments come back as it says.
  async function_tool() {
    const parameters = z.object({ place: z.string() });
    const tools = [zodResponsesFunction({ name: "weather", parameters })];
    const response = await client.responses.parse({ model, input: WEATHER, tools });
    return response.output.map((item) => item.parsed_arguments.place);
  },

  // The client goes on by itself until there is no call any more.
  async runner() {
    const { ResponsesToolRunner } = await import(`${PACKAGE}/helpers/responses-tool-runner`);
    const functions = [{ tool, execute: ({ place }) => weather(place) }];
    const runner = new ResponsesToolRunner({ functions });
    const response = await runner.run(client, { model, input: WEATHER }, { stream: true });
    return { text: response.output_text };
  },

  // The tool runner for chat completions.
  async chat_runner() {
    const { parameters, name, description } = tool;
    const call = { name, description, parameters, parse: JSON.parse, function: ({ place }) => weather(place) };
    const runner = client.chat.completions.runTools({
      model,
      messages: [user(WEATHER)],
      tools: [{ type: "function", function: call }],
      stream: true,
    });
    return { text: await runner.finalContent() };
  },

  // All that can be done with a response that is there.
  async stored() {
    const made = await client.responses.create({ model, input: ["a", "b", "c"].map(user) });
    const found = await client.responses.retrieve(made.id);
    const input = [];
    for await (const item of client.responses.inputItems.list(made.id, { limit: 2, order: "asc" })) {
      input.push(item.content[0].text);
    }
    await client.responses.delete(made.id);
    const then = await client.responses.retrieve(made.id).catch((error) => error.constructor.name);
    return { same: JSON.stringify(made.output) === JSON.stringify(found.output), text: found.output_text, input, then };
  },

  // Follow a response that is made in the background, lose it, and go on from there.
  async background() {
    let id, seen;
    for await (const event of client.responses.stream({ model, input: HELLO, background: true })) {
      id ??= event.response.id;
      seen = event.sequence_number;
      if (event.type === "response.in_progress") break;
    }
    const numbers = [];
    const events = client.responses.stream({ response_id: id, starting_after: seen });
    for await (const event of events) numbers.push(event.sequence_number);
    const final = await events.finalResponse();
    const rest = [];
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 2 })) {
      rest.push(event.sequence_number);
    }
    return {
      text: final.output_text,
      whole: numbers.every((number, index) => number === numbers[0] + index),
      first: numbers[0] - seen,
      rest: rest[0],
      status: (await client.responses.retrieve(id)).status,
    };
  },

  async cancelled() {
    const made = await client.responses.create({ model, input: HELLO, background: true });
    return { first: made.status, then: (await client.responses.cancel(made.id)).status };
  },

  async counted() {
    return (await client.responses.inputTokens.count({ model, input: HELLO })).input_tokens;
  },

  async compacted() {
    const compacted = await client.responses.compact({ model, input: [user(NAME)] });
    const answer = await client.responses.create({ model, input: [...compacted.output, user(ASK_NAME)] });
    return { object: compacted.object, last: compacted.output.at(-1).type, text: answer.output_text };
  },

  async conversation() {
    const conversation = await client.conversations.create({ metadata: { topic: "names" } });
    const { id } = conversation;
    await client.conversations.items.create(id, { items: [user(NAME)] });
    const answer = await client.responses.create({ model, input: ASK_NAME, conversation: id });
    const items = [];
    for await (const item of client.conversations.items.list(id, { order: "asc" })) items.push(item.content[0].text);
    const updated = await client.conversations.update(id, { metadata: { topic: "Ada" } });
    const again = await client.conversations.retrieve(id);
    return {
      text: answer.output_text,
      items,
      topics: [conversation, updated, again].map(({ metadata }) => metadata.topic),
      deleted: (await client.conversations.delete(id)).deleted,
    };
  },

  // Two turns on one connection; nothing is stored.
  async socket() {
    const { ResponsesWS } = await import(`${PACKAGE}/resources/responses/ws`);
    const connection = new ResponsesWS(client);
    const texts = [];
    let previous = null;
    const ask = (input) =>
      connection.send({ type: "response.create", model, input, store: false, previous_response_id: previous });
    ask(NAME);
    for await (const { type, message, error } of connection) {
      if (type === "error") throw error;
      if (type !== "message" || message.type !== "response.completed") continue;
      texts.push(message.response.output[0].content[0].text);
      previous = message.response.id;
      if (texts.length === 2) break;
      ask(ASK_NAME);
    }
    connection.close();
    return texts;
  },

  async models() {
    const listed = [];
    for await (const { id } of client.models.list()) listed.push(id);
    return { listed, found: (await client.models.retrieve(listed[0])).id };
  },

  async cut_off() {
    const response = await client.responses.create({ model, input: HELLO, max_output_tokens: 16 });
    return { status: response.status, reason: response.incomplete_details.reason, text: response.output_text };
  },

  // Many streams: each event by itself, then all put together, by a helper that throws at what it does not know.
  async events() {
    const counts = [];
    const wholes = [];
    for (let at = 0; at < Number(process.env.COUNT); at++) {
      let count = 0;
      try {
        for await (const _ of await client.responses.create({ model, input: HELLO, stream: true })) count++;
      } catch (error) {
        if (!(error instanceof OpenAI.APIError)) throw error;
        count = error.error.message;
      }
      counts.push(count);
    }
    for (let at = 0; at < Number(process.env.COUNT); at++) {
      try {
        wholes.push((await streamed({ input: HELLO })).response.output.map(plain));
      } catch (error) {
        if (!(error instanceof OpenAI.APIError)) throw error;
        wholes.push(error.error.message);
      }
    }
    return { counts, wholes, unknown: [] };
  },

  async hosted() {
    return hostedShown(await client.responses.create({ model, input: ADD, tools: [mcp] }));
  },

  async hosted_streamed() {
    return hostedShown((await streamed({ input: ADD, tools: [mcp] })).response);
  },

  async hosted_approved() {
    const first = await client.responses.create({ model, input: ADD, tools: [asking] });
    const params = { model, input: decided(first, true), tools: [asking], previous_response_id: first.id };
    return hostedShown(await client.responses.create(params));
  },

  async hosted_approved_streamed() {
    const { response: first } = await streamed({ input: ADD, tools: [asking] });
    const params = { input: decided(first, true), tools: [asking], previous_response_id: first.id };
    return hostedShown((await streamed(params)).response);
  },

  async hosted_approved_replayed() {
    const params = { model, tools: [asking], store: false };
    const first = await client.responses.create({ ...params, input: ADD });
    const input = [user(ADD), ...first.output, ...decided(first, true)];
    return hostedShown(await client.responses.create({ ...params, input }));
  },

  async hosted_rejected() {
    const first = await client.responses.create({ model, input: ADD, tools: [asking] });
    const params = { model, input: decided(first, false), tools: [asking], previous_response_id: first.id };
    return hostedShown(await client.responses.create(params));
  },

  async hosted_turns() {
    const first = await client.responses.create({ model, input: ADD, tools: [mcp] });
    const second = await client.responses.create({
      model,
      input: ASK_NAME,
      tools: [mcp],
      previous_response_id: first.id,
    });
    return { text: second.output_text, items: second.output.map((item) => item.type) };
  },

  async hosted_replayed() {
    const first = await client.responses.create({ model, input: ADD, tools: [mcp], store: false });
    const input = [user(ADD), ...first.output, user(ASK_NAME)];
    const second = await client.responses.create({ model, input, tools: [mcp], store: false });
    return { text: second.output_text, items: second.output.map((item) => item.type) };
  },
});
