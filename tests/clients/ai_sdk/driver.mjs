// Vercel's AI SDK, versions 7 and 6, with one of its providers: `openai`, `open-responses` or `anthropic`.

import { z } from "zod";

import { ADD, ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, weather } from "../drive/scenarios.mjs";

const { PACKAGE, PROVIDER } = process.env;
const { Output, generateObject, generateText, stepCountIs, streamObject, streamText, tool } = await import(PACKAGE);
const { createAnthropic, createOpenAI, createOpenResponses } = await import(PROVIDER);

const openai = createOpenAI?.({ baseURL: URL, apiKey: KEY });
const others = createAnthropic
  ? createAnthropic({ baseURL: URL, apiKey: KEY })
  : createOpenResponses?.({ name: "lab", url: `${URL}/responses`, apiKey: KEY });
const model = (openai ?? others)(MODEL);
const schema = z.object({ name: z.string(), born: z.int() });
const tools = {
  weather: tool({
    description: "The weather of a place.",
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => weather(place),
  }),
};
const stopWhen = stepCountIs(5);
const unstored = { providerOptions: { openai: { store: false } } };

const user = (content) => ({ role: "user", content });
const usage = ({ inputTokens, outputTokens }) => [inputTokens, outputTokens];

// What a stream shows, part by part; the user of the AI SDK hears of an error in no other way.
async function streamed(params) {
  let failure;
  const result = streamText({ model, ...params, onError: ({ error }) => (failure = error) });
  const shown = { pieces: [], reasoning: "" };
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") shown.pieces.push(part.text);
    if (part.type === "reasoning-delta") shown.reasoning += part.text;
    if (part.type === "error") throw part.error;
  }
  if (failure) throw failure;
  const finish = await result.finishReason;
  if (finish === "error") throw new Error(`finishReason: ${finish}`);
  return { ...shown, text: await result.text, usage: usage(await result.totalUsage) };
}

// An MCP server that is asked by the server, and what it said.
const lab = (requireApproval) => ({
  lab: openai.tools.mcp({ serverLabel: "lab", connectorId: "lab", requireApproval }),
});
const hostedResults = ({ content }) =>
  content.filter((part) => part.type === "tool-result").map((part) => part.output.output ?? null);
const hostedShown = (result) => ({ text: result.text, results: hostedResults(result) });

// Ask, and go on with what the user says to what is to be approved.
async function decided(approved) {
  const tools = lab("always");
  const first = await generateText({ model, prompt: ADD, tools });
  const decisions = first.content
    .filter((part) => part.type === "tool-approval-request")
    .map(({ approvalId }) => ({ type: "tool-approval-response", approvalId, approved, providerExecuted: true }));
  const messages = [user(ADD), ...(first.responseMessages ?? first.response.messages), { role: "tool", content: decisions }];
  return hostedShown(await generateText({ model, messages, tools }));
}

// A search in files that the server makes, and what it found.
const searching = () => ({ file_search: openai.tools.fileSearch({ vectorStoreIds: [process.env.STORE], maxNumResults: 3 }) });
const including = { providerOptions: { openai: { include: ["file_search_call.results"] } } };
const searched = ({ text, content, sources }) => ({
  text,
  found: content.filter(({ type }) => type === "tool-result").flatMap(({ output }) => (output.results ?? []).map(({ filename }) => filename)),
  cited: sources.map(({ filename }) => filename),
});

const webSearch = () => ({ web_search: openai ? openai.tools.webSearch({}) : others.tools.webSearch_20250305({}) });
const webSearched = ({ text, sources }) => ({ text, cited: sources.map(({ url }) => url) });

const codeInterpreter = () => ({ code_interpreter: openai.tools.codeInterpreter({}) });
const programmed = ({ text, content }) => ({
  text,
  code: content.filter(({ type }) => type === "tool-call").map(({ input }) => (typeof input === "string" ? JSON.parse(input) : input).code),
  logs: content.filter(({ type }) => type === "tool-result").flatMap(({ output }) => (output.outputs ?? []).map(({ logs }) => logs)),
});
const streamedWhole = async (options) => {
  const result = streamText({ model, ...options });
  await result.consumeStream();
  return { text: await result.text, content: await result.content, sources: await result.sources };
};

await play({
  async web_search() {
    return webSearched(await generateText({ model, prompt: WHO, tools: webSearch() }));
  },

  async web_search_streamed() {
    return webSearched(await streamedWhole({ prompt: WHO, tools: webSearch() }));
  },

  async code() {
    return programmed(await generateText({ model, prompt: SUM, tools: codeInterpreter() }));
  },

  async code_streamed() {
    return programmed(await streamedWhole({ prompt: SUM, tools: codeInterpreter() }));
  },

  async file_search() {
    return searched(await generateText({ model, prompt: WHO, tools: searching(), ...including }));
  },

  async file_search_streamed() {
    const result = streamText({ model, prompt: WHO, tools: searching(), ...including });
    await result.consumeStream();
    return searched({ text: await result.text, content: await result.content, sources: await result.sources });
  },

  async text() {
    const result = await generateText({ model, prompt: HELLO });
    return { text: result.text, usage: usage(result.usage), status: result.finishReason };
  },

  async stream() {
    const { pieces, text, usage } = await streamed({ prompt: HELLO });
    return { pieces, text, usage };
  },

  // The client calls the functions, and asks again by itself.
  async tools() {
    const { text, steps } = await generateText({ model, prompt: WEATHER, tools, stopWhen });
    return { text, steps: steps.length };
  },

  async tools_streamed() {
    return { text: (await streamed({ prompt: WEATHER, tools, stopWhen })).text };
  },

  async tools_unstored() {
    const { text } = await generateText({ model, prompt: WEATHER, tools, stopWhen, ...unstored });
    return { text };
  },

  async structured() {
    return (await generateObject({ model, prompt: WHO, schema })).object;
  },

  async structured_streamed() {
    const { object, partialObjectStream } = streamObject({ model, prompt: WHO, schema });
    let seen = 0;
    for await (const _ of partialObjectStream) seen++;
    if (seen < 2) throw new Error("The object came at once.");
    return await object;
  },

  async structured_output() {
    return (await generateText({ model, prompt: WHO, output: Output.object({ schema }) })).output;
  },

  // What was said before goes back as the client has it: with `openai`, as references to what the server keeps.
  async turns() {
    const first = await generateText({ model, prompt: NAME });
    const messages = [user(NAME), ...first.response.messages, user(ASK_NAME)];
    return { text: (await generateText({ model, messages })).text };
  },

  async turns_replayed() {
    const first = await generateText({ model, prompt: NAME, ...unstored });
    const messages = [user(NAME), ...first.response.messages, user(ASK_NAME)];
    return { text: (await generateText({ model, messages, ...unstored })).text };
  },

  // A turn with tools, and one that goes on from it.
  async turns_with_tools() {
    const first = await generateText({ model, prompt: WEATHER, tools, stopWhen });
    const answerMessages = first.responseMessages ?? first.response.messages; // in version 7, in version 6
    const messages = [user(WEATHER), ...answerMessages, user(ASK_NAME)];
    return { text: (await generateText({ model, messages, tools, stopWhen })).text };
  },

  async turns_named() {
    const first = await generateText({ model, prompt: NAME });
    const previousResponseId = first.providerMetadata.openai.responseId;
    const second = await generateText({ model, prompt: ASK_NAME, providerOptions: { openai: { previousResponseId } } });
    return { text: second.text };
  },

  async thinking() {
    const { text, reasoningText } = await generateText({ model, prompt: SUM });
    return { text, reasoning: reasoningText };
  },

  async thinking_streamed() {
    const { text, reasoning } = await streamed({ prompt: SUM });
    return { text, reasoning };
  },

  // A thought that led to a call comes back with its result.
  async thinking_again() {
    const { text, steps } = await generateText({ model, prompt: WEATHER, tools, stopWhen });
    return { text, reasoning: steps[0].reasoningText };
  },

  async thinking_sealed() {
    const openai = { store: false, include: ["reasoning.encrypted_content"] };
    const params = { model, prompt: WEATHER, tools, stopWhen, providerOptions: { openai } };
    const { text, steps } = await generateText(params);
    const sealed = steps[0].reasoning
      .map((part) => part.providerMetadata ?? part.providerOptions) // in version 6, in version 7
      .map(({ openai }) => openai.reasoningEncryptedContent);
    return { text, sealed: sealed.length === 1 && Boolean(sealed[0]) };
  },

  async instructions() {
    return { text: (await generateText({ model, system: "Be brief.", prompt: HELLO })).text };
  },

  async cut_off() {
    const { text, finishReason } = await generateText({ model, prompt: HELLO, maxOutputTokens: 16 });
    return { text, status: finishReason };
  },

  async hosted() {
    return hostedShown(await generateText({ model, prompt: ADD, tools: lab() }));
  },

  async hosted_streamed() {
    const result = streamText({ model, prompt: ADD, tools: lab() });
    for await (const part of result.fullStream) if (part.type === "error") throw part.error;
    return hostedShown({ text: await result.text, content: await result.content });
  },

  async hosted_approved() {
    return await decided(true);
  },

  async hosted_rejected() {
    return await decided(false);
  },

  async hosted_turns() {
    const first = await generateText({ model, prompt: ADD, tools: lab() });
    const messages = [user(ADD), ...(first.responseMessages ?? first.response.messages), user(ASK_NAME)];
    return hostedShown(await generateText({ model, messages, tools: lab() }));
  },

  async hosted_replayed() {
    const first = await generateText({ model, prompt: ADD, tools: lab(), ...unstored });
    const messages = [user(ADD), ...(first.responseMessages ?? first.response.messages), user(ASK_NAME)];
    return hostedShown(await generateText({ model, messages, tools: lab(), ...unstored }));
  },
});
