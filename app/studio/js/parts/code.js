// A request as code: for the terminal, Python and JavaScript, with this server's address filled in.

import { baseUrl, key } from "../lib/api.js";

export const LANGUAGES = { curl: asCurl, Python: asPython, JavaScript: asJavaScript };

// One message that is all text can be written as that text.
/** @returns {any} */
function simplified({ input, ...rest }) {
  const [message] = input;
  const text =
    input.length === 1 && message.role === "user" && message.content?.length === 1
      ? message.content[0].text
      : undefined;
  return { ...rest, input: text ?? input };
}

function asCurl(asked) {
  const request = simplified(asked);
  const lines = [`curl -N ${baseUrl}/responses`, "-H 'Content-Type: application/json'"];
  if (key.get()) lines.push('-H "Authorization: Bearer $ANTIPHON_API_KEY"');
  lines.push(`-d '${JSON.stringify(request, null, 2).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

function asPython(asked) {
  const request = simplified(asked);
  const secret = key.get() ? 'os.environ["ANTIPHON_API_KEY"]' : '"unused"';
  const fields = Object.entries(request)
    .filter(([name]) => !(name in EXTRA))
    .map(([name, value]) => `    ${name}=${python(value, 1)},`);
  const extra = Object.fromEntries(Object.entries(request).filter(([name]) => name in EXTRA));
  if (Object.keys(extra).length) fields.push(`    extra_body=${python(extra, 1)},`);
  const head = `${key.get() ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url=${python(baseUrl)}, api_key=${secret})\n`;
  const call = `client.responses.create(\n${fields.join("\n")}\n)`;
  if (!request.stream) return `${head}response = ${call}\nprint(response.output_text)\n`;
  return `${head}stream = ${call}\nfor event in stream:\n    if event.type == "response.output_text.delta":\n        print(event.delta, end="", flush=True)\n`;
}

// What the client for Python has no argument for.
const EXTRA = Object.fromEntries(
  [
    "seed",
    "stop",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "chat_template_kwargs",
  ].map((name) => [name, true]),
);

function python(value, depth = 0) {
  const pad = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const array = Array.isArray(value);
  const parts = array
    ? value.map((each) => python(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, depth + 1)}`);
  if (!parts.length) return array ? "[]" : "{}";
  const [open, close] = array ? "[]" : "{}";
  return `${open}\n${parts.map((part) => `${pad}${part},`).join("\n")}\n${end}${close}`;
}

function asJavaScript(asked) {
  const request = simplified(asked);
  const secret = key.get() ? "process.env.ANTIPHON_API_KEY" : '"unused"';
  const head = `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(baseUrl)}, apiKey: ${secret} });\n`;
  const body = JSON.stringify(request, null, 2);
  if (!request.stream)
    return `${head}const response = await client.responses.create(${body});\nconsole.log(response.output_text);\n`;
  return `${head}const stream = await client.responses.create(${body});\nfor await (const event of stream) {\n  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);\n}\n`;
}
