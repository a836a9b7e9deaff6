// What a stored response tells of its request, and what the server has recorded of it.

import { getJson } from "./api.js";

const ASKED = [
  "model",
  "instructions",
  "previous_response_id",
  "tools",
  "tool_choice",
  "text",
  "reasoning",
  "temperature",
  "top_p",
  "max_output_tokens",
  "truncation",
  "background",
  "store",
];

// The resource has these values also where the request had none.
const DEFAULTS = {
  tool_choice: "auto",
  temperature: 1,
  top_p: 1,
  truncation: "disabled",
  background: false,
  store: true,
  tools: [],
  text: { format: { type: "text" } },
};

// The request of a stored turn. What it set is stored with it; of an older one only the resource tells.
export function requestOf({ response, input, request }) {
  const names = request ? ["model", "instructions", "previous_response_id", "tools", "background"] : ASKED;
  const given = names
    .map((name) => [name, tidy(response[name])])
    .filter(([name, value]) => value !== null && JSON.stringify(value) !== JSON.stringify(DEFAULTS[name]));
  return { ...Object.fromEntries(given), ...request, input };
}

// The request that repeats the last response of a chain, in a conversation of its own if that was in one.
export function repeatOf({ data, earlier = [] }) {
  const { background: _, ...request } = requestOf(data.at(-1));
  return { ...request, input: [...earlier, ...request.input] };
}

// What the server knows of a response that has just ended, and its stream does not tell: {cost, backend}.
export async function recorded(id) {
  try {
    const { data } = await getJson("antiphon/responses?limit=10");
    const { cost = null, backend = null } = data.find((entry) => entry.id === id) ?? {};
    return { cost, backend };
  } catch {
    return {}; // what is known without it is enough
  }
}

// A value without the fields that are null, down to those of a tool or a format; null if nothing is left of it.
function tidy(value, depth = 0) {
  if (value === null || value === undefined) return null;
  if (typeof value !== "object" || depth > 1) return value;
  if (Array.isArray(value)) return value.map((each) => tidy(each, depth + 1));
  const fields = Object.entries(value)
    .map(([name, each]) => [name, tidy(each, depth + 1)])
    .filter(([, each]) => each !== null);
  return fields.length ? Object.fromEntries(fields) : null;
}
