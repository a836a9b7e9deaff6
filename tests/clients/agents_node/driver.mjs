// The OpenAI Agents SDK for Node.

import {
  Agent,
  MemorySession,
  OpenAIConversationsSession,
  OpenAIResponsesCompactionSession,
  OpenAIResponsesModel,
  OpenAIResponsesWSModel,
  hostedMcpTool,
  run,
  setDefaultOpenAIClient,
  setTracingDisabled,
  tool,
  user,
} from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

import { ADD, ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, weather } from "../drive/scenarios.mjs";

const client = new OpenAI();
setDefaultOpenAIClient(client);
setTracingDisabled(true);

const askWeather = tool({
  name: "weather",
  description: "The weather of a place.",
  parameters: z.object({ place: z.string() }),
  execute: async ({ place }) => weather(place),
});
const Person = z.object({ name: z.string(), born: z.int() });

const agent = (options = {}) => new Agent({ name: "helper", model: new OpenAIResponsesModel(client, MODEL), ...options });
const usage = ({ state }) => [state.usage.inputTokens, state.usage.outputTokens];

function thoughts({ newItems }) {
  const [item, ...others] = newItems.filter((item) => item.type === "reasoning_item").map((item) => item.rawItem);
  if (others.length) throw new Error("There is more than one thought.");
  return { item, text: [...item.content, ...(item.rawContent ?? [])].map((part) => part.text).join("") };
}

// The result, once all of its stream has been read, and the pieces of a kind of event.
async function streamed(agent, prompt, options = {}) {
  const result = await run(agent, prompt, { ...options, stream: true });
  const pieces = [];
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") pieces.push(event.data.delta);
  }
  await result.completed;
  return { pieces, result };
}

// An MCP server that is asked by the server; with `approve` what the user says to each call.
const lab = (approve) =>
  hostedMcpTool({
    serverLabel: "lab",
    connectorId: "lab",
    ...(approve === undefined
      ? { requireApproval: "never" }
      : { requireApproval: "always", onApproval: async () => ({ approve, reason: "Because." }) }),
  });
const hostedResults = ({ rawResponses }) =>
  rawResponses
    .flatMap(({ output }) => output)
    .filter((item) => item.type === "hosted_tool_call" && item.name === "mcp_call")
    .map((item) => item.output)
    .filter((output) => output != null);
const hostedShown = (result) => ({ text: result.finalOutput, results: hostedResults(result) });

await play({
  async text() {
    const result = await run(agent(), HELLO);
    return { text: result.finalOutput, usage: usage(result) };
  },

  async stream() {
    const { pieces, result } = await streamed(agent(), HELLO);
    return { pieces, text: result.finalOutput, usage: usage(result) };
  },

  async tools() {
    return { text: (await run(agent({ tools: [askWeather] }), WEATHER)).finalOutput };
  },

  async tools_streamed() {
    return { text: (await streamed(agent({ tools: [askWeather] }), WEATHER)).result.finalOutput };
  },

  async structured() {
    return (await run(agent({ outputType: Person }), WHO)).finalOutput;
  },

  async structured_streamed() {
    return (await streamed(agent({ outputType: Person }), WHO)).result.finalOutput;
  },

  async turns() {
    const first = await run(agent(), NAME);
    return { text: (await run(agent(), ASK_NAME, { previousResponseId: first.lastResponseId })).finalOutput };
  },

  async turns_replayed() {
    const first = await run(agent(), NAME);
    return { text: (await run(agent(), [...first.history, user(ASK_NAME)])).finalOutput };
  },

  async turns_in_a_session() {
    const session = new MemorySession();
    await run(agent(), NAME, { session });
    return { text: (await run(agent(), ASK_NAME, { session })).finalOutput };
  },

  async turns_in_a_conversation() {
    const session = new OpenAIConversationsSession({ client });
    await run(agent(), NAME, { session });
    const result = await run(agent(), ASK_NAME, { session });
    const items = await session.getItems();
    await session.clearSession();
    const texts = items.map(({ content }) => (typeof content === "string" ? content : content[0].text));
    return { text: result.finalOutput, items: texts };
  },

  // After each turn the session asks for what was said to be made smaller.
  async turns_compacted() {
    const session = new OpenAIResponsesCompactionSession({
      client,
      model: MODEL,
      shouldTriggerCompaction: () => true,
    });
    await run(agent(), NAME, { session });
    const kept = (await session.getItems()).at(-1).type;
    return { text: (await run(agent(), ASK_NAME, { session })).finalOutput, kept };
  },

  async turns_on_a_socket() {
    const model = new OpenAIResponsesWSModel(client, MODEL);
    const { result } = await streamed(agent({ model, tools: [askWeather] }), WEATHER);
    return { text: result.finalOutput };
  },

  async handoff() {
    const expert = agent({ name: "expert", instructions: "You know the weather." });
    const result = await run(Agent.create({ ...agent(), handoffs: [expert] }), WEATHER);
    return { text: result.finalOutput, by: result.lastAgent.name };
  },

  async thinking() {
    const result = await run(agent(), SUM);
    return { text: result.finalOutput, reasoning: thoughts(result).text };
  },

  async thinking_streamed() {
    const { result } = await streamed(agent(), SUM);
    return { text: result.finalOutput, reasoning: thoughts(result).text };
  },

  async thinking_sealed() {
    const reasoning = { effort: "low", summary: "auto" };
    const providerData = { include: ["reasoning.encrypted_content"] };
    const modelSettings = { store: false, reasoning, providerData };
    const result = await run(agent({ tools: [askWeather], modelSettings }), WEATHER);
    const { item } = thoughts(result);
    return { text: result.finalOutput, sealed: Boolean(item.providerData?.encrypted_content) };
  },

  async hosted() {
    return hostedShown(await run(agent({ tools: [lab()] }), ADD));
  },

  async hosted_streamed() {
    return hostedShown((await streamed(agent({ tools: [lab()] }), ADD)).result);
  },

  async hosted_approved() {
    return hostedShown(await run(agent({ tools: [lab(true)] }), ADD));
  },

  async hosted_approved_streamed() {
    return hostedShown((await streamed(agent({ tools: [lab(true)] }), ADD)).result);
  },

  async hosted_rejected() {
    return hostedShown(await run(agent({ tools: [lab(false)] }), ADD));
  },

  async hosted_turns() {
    const first = await run(agent({ tools: [lab()] }), ADD);
    const options = { previousResponseId: first.lastResponseId };
    return hostedShown(await run(agent({ tools: [lab()] }), ASK_NAME, options));
  },

  async hosted_replayed() {
    const first = await run(agent({ tools: [lab()] }), ADD);
    return hostedShown(await run(agent({ tools: [lab()] }), [...first.history, user(ASK_NAME)]));
  },
});
