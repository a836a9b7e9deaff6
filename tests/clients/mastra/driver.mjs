// Mastra, by the provider of the AI SDK.

import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { createOpenAI } from "@ai-sdk/openai";
import { z } from "zod";

import { ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, weather } from "../drive/scenarios.mjs";

const schema = z.object({ name: z.string(), born: z.int() });
const askWeather = createTool({
  id: "weather",
  description: "The weather of a place.",
  inputSchema: z.object({ place: z.string() }),
  execute: async ({ place }) => weather(place),
});
const agent = (tools = {}) =>
  new Agent({
    id: "helper",
    name: "helper",
    instructions: "Help.",
    model: createOpenAI({ baseURL: URL, apiKey: KEY })(MODEL),
    maxRetries: 0,
    tools,
  });

const usage = ({ inputTokens, outputTokens }) => [inputTokens, outputTokens];

async function streamed(agent, prompt) {
  const result = await agent.stream(prompt);
  const pieces = [];
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") pieces.push(part.payload.text);
    if (part.type === "error") throw part.payload.error;
  }
  return { pieces, text: await result.text, usage: usage(await result.usage) };
}

await play({
  text: async () => {
    const result = await agent().generate(HELLO);
    return { text: result.text, usage: usage(result.usage) };
  },
  stream: () => streamed(agent(), HELLO),
  tools: async () => ({ text: (await agent({ weather: askWeather }).generate(WEATHER)).text }),
  tools_streamed: async () => ({ text: (await streamed(agent({ weather: askWeather }), WEATHER)).text }),
  structured: async () => (await agent().generate(WHO, { structuredOutput: { schema } })).object,
  turns: async () => {
    const assistant = agent();
    const first = await assistant.generate(NAME);
    const messages = [{ role: "user", content: NAME }, ...first.response.messages, { role: "user", content: ASK_NAME }];
    return { text: (await assistant.generate(messages)).text };
  },
  thinking: async () => {
    const result = await agent().generate(SUM);
    return { text: result.text, reasoning: result.reasoningText };
  },
});
