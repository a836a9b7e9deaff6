// LangChain for Node, by its package for OpenAI.

import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

import { ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, weather } from "../drive/scenarios.mjs";

const chat = (options = {}) =>
  new ChatOpenAI({
    model: MODEL,
    apiKey: KEY,
    useResponsesApi: true,
    maxRetries: 0,
    configuration: { baseURL: URL },
    ...options,
  });
const schema = z.object({ name: z.string(), born: z.int() });
const askWeather = tool(({ place }) => weather(place), {
  name: "weather",
  description: "The weather of a place.",
  schema: z.object({ place: z.string() }),
});

const usage = ({ usage_metadata }) => [usage_metadata.input_tokens, usage_metadata.output_tokens];
const thoughts = ({ contentBlocks }) =>
  contentBlocks
    .filter(({ type }) => type === "reasoning")
    .map(({ reasoning }) => reasoning)
    .join("");

// The pieces of text, and the message that they are joined to.
async function streamed(model, messages) {
  const pieces = [];
  let message;
  for await (const chunk of await model.stream(messages)) {
    if (chunk.text) pieces.push(chunk.text);
    message = message === undefined ? chunk : message.concat(chunk);
  }
  return { pieces, message };
}

// Call what is called, until there is an answer.
async function worked(ask) {
  const messages = [new HumanMessage(WEATHER)];
  const model = chat().bindTools([askWeather]);
  for (;;) {
    const message = await ask(model, messages);
    messages.push(message);
    if (!message.tool_calls?.length) return { text: message.text };
    for (const call of message.tool_calls) messages.push(await askWeather.invoke(call));
  }
}

await play({
  text: async () => {
    const message = await chat().invoke(HELLO);
    return { text: message.text, usage: usage(message) };
  },
  stream: async () => {
    const { pieces, message } = await streamed(chat(), HELLO);
    return { pieces, text: message.text, usage: usage(message) };
  },
  tools: () => worked((model, messages) => model.invoke(messages)),
  tools_streamed: () => worked(async (model, messages) => (await streamed(model, messages)).message),
  structured: () => chat().withStructuredOutput(schema).invoke(WHO),
  turns: async () => {
    const first = await chat().invoke(NAME);
    return { text: (await chat().invoke([new HumanMessage(NAME), first, new HumanMessage(ASK_NAME)])).text };
  },
  thinking: async () => {
    const message = await chat().invoke(SUM);
    return { text: message.text, reasoning: thoughts(message) };
  },
});
