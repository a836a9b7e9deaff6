import { z } from "zod";
const { generateText, stepCountIs, tool } = await import("ai");
const { createOpenAI } = await import("@ai-sdk/openai");
const model = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: "k" })("m");
const tools = { weather: tool({ description: "w", inputSchema: z.object({ place: z.string() }), execute: async ({ place }) => place }) };
const r = await generateText({ model, prompt: "a", tools, stopWhen: stepCountIs(5), providerOptions: { openai: { store: false, include: ["reasoning.encrypted_content"] } } });
console.log(JSON.stringify(r.steps[0].reasoning, null, 1), JSON.stringify(r.steps[0].request, null, 1), JSON.stringify(r.steps[0].response.body?.output, null, 1));
