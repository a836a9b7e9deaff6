// What a stored response tells of its request.

const ASKED = ["model", "instructions", "previous_response_id", "tools", "tool_choice", "text", "reasoning", "temperature", "top_p", "max_output_tokens", "truncation", "background", "store"];

// The resource has these values also where the request had none.
const DEFAULTS = { tool_choice: "auto", temperature: 1, top_p: 1, truncation: "disabled", background: false, store: true, tools: [], text: { format: { type: "text" } } };

export function requestOf({ response, input }) {
  const given = ASKED.map((name) => [name, tidy(response[name])]).filter(([name, value]) => value !== null && JSON.stringify(value) !== JSON.stringify(DEFAULTS[name]));
  return { ...Object.fromEntries(given), input };
}

// A value without the fields that are null, down to those of a tool or a format; null if nothing is left of it.
function tidy(value, depth = 0) {
  if (value === null || value === undefined) return null;
  if (typeof value !== "object" || depth > 1) return value;
  if (Array.isArray(value)) return value.map((each) => tidy(each, depth + 1));
  const fields = Object.entries(value).map(([name, each]) => [name, tidy(each, depth + 1)]).filter(([, each]) => each !== null);
  return fields.length ? Object.fromEntries(fields) : null;
}
