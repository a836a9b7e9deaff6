// What is configured and what is up, and how to point a client at this server.

import { baseUrl, getJson, key, serverUrl } from "./lib/api.js";
import { askForKey } from "./lib/dialog.js";
import { byId, copyButton, h } from "./lib/dom.js";
import { plain } from "./lib/text.js";

export class About {
  async show() {
    const place = byId("about-body");
    try {
      const [about, ready, models] = await Promise.all([
        getJson("antiphon/about"),
        readiness(),
        getJson("models").catch(() => ({ data: [] })),
      ]);
      place.replaceChildren(...page(about, ready, models.data[0]?.id ?? "demo"));
    } catch (error) {
      askForKey(error);
      place.replaceChildren(h("p", { class: "failure" }, plain(error.message)));
    }
  }

  hide() {}

  reset() {
    byId("about-body").replaceChildren();
  }
}

async function readiness() {
  try {
    return await (await fetch(serverUrl("readyz"), { cache: "no-store" })).json();
  } catch {
    return { status: "unavailable", backend: "unknown", store: "unknown" };
  }
}

function page(about, ready, model) {
  const links = [
    ["API reference", "docs"],
    ["OpenAPI document", "openapi.json"],
    about.metrics ? ["Metrics", "metrics"] : null,
    ["Readiness", "readyz"],
  ].filter(Boolean);
  return [
    section(
      "Clients",
      h("p", {}, "Base URL: ", h("code", {}, baseUrl), ". ", copyButton(baseUrl, "Base URL")),
      clients(model).map(([name, text]) =>
        h(
          "section",
          { class: "client", "aria-label": name },
          h("div", { class: "toolbar" }, h("h3", {}, name), copyButton(text, name)),
          h("pre", { class: "json", tabindex: 0, role: "region", "aria-label": `Lines for ${name}` }, text),
        ),
      ),
    ),
    section(
      "Health",
      table([
        ["Backend", state(ready.backend)],
        ["Store", state(ready.store)],
      ]),
    ),
    section(
      "Backends",
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "List of backends" },
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Name", "Profile", "Address", "Models"].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          h(
            "tbody",
            {},
            about.backends.map((backend) =>
              h(
                "tr",
                {},
                h("td", {}, backend.name),
                h("td", {}, backend.profile),
                h("td", {}, h("code", {}, backend.url ?? "built in")),
                h("td", {}, backend.models.map((model) => (model === "*" ? "any" : model)).join(", ")),
              ),
            ),
          ),
        ),
      ),
    ),
    section(
      "Settings",
      table([
        ["Version", about.version],
        ["Store", `${about.store.kind}, ${duration(about.store.ttl)}`],
        ["Background responses", about.background ? "yes" : "no"],
        ["API keys", about.key_required ? "required" : "not required"],
        [
          "Hosted tools",
          about.tools.length ? about.tools.map((tool) => tool.server_label ?? tool.type).join(", ") : "none",
        ],
      ]),
    ),
    section(
      "Links",
      h(
        "ul",
        {},
        links.map(([name, path]) => h("li", {}, h("a", { href: serverUrl(path) }, name))),
      ),
    ),
  ];
}

const section = (title, ...body) => h("section", { "aria-label": title }, h("h2", {}, title), body);
const table = (rows) =>
  h(
    "dl",
    { class: "fields" },
    rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
const state = (text) => h("span", { class: `chip ${text === "ok" ? "completed" : "failed"}` }, plain(text));

function duration(seconds) {
  for (const [name, size] of Object.entries({ day: 86400, hour: 3600, minute: 60 })) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${name}${Math.round(seconds / size) === 1 ? "" : "s"}`;
  }
  return `${seconds} seconds`;
}

function clients(model) {
  const secret = key.get() ? "$ANTIPHON_API_KEY" : "unused";
  return [
    ["Codex", `antiphon codex --url ${baseUrl}`],
    ["OpenAI SDKs and tools", `export OPENAI_BASE_URL=${baseUrl}\nexport OPENAI_API_KEY=${secret}`],
    [
      "openai for Python",
      `from openai import OpenAI\n\nclient = OpenAI(base_url="${baseUrl}", api_key="${secret}")\nprint(client.responses.create(model="${model}", input="Hello!").output_text)`,
    ],
    [
      "openai for Node",
      `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${baseUrl}", apiKey: "${secret}" });\nconsole.log((await client.responses.create({ model: "${model}", input: "Hello!" })).output_text);`,
    ],
    [
      "Agents SDK for Python",
      `from agents import set_default_openai_client, set_tracing_disabled\nfrom openai import AsyncOpenAI\n\nset_default_openai_client(AsyncOpenAI(base_url="${baseUrl}", api_key="${secret}"))\nset_tracing_disabled(True)`,
    ],
    [
      "AI SDK",
      `import { createOpenAI } from "@ai-sdk/openai";\n\nconst openai = createOpenAI({ baseURL: "${baseUrl}", apiKey: "${secret}" });\nconst model = openai.responses("${model}");`,
    ],
    [
      "LangChain",
      `from langchain_openai import ChatOpenAI\n\nllm = ChatOpenAI(model="${model}", base_url="${baseUrl}", api_key="${secret}", use_responses_api=True)`,
    ],
    [
      "curl",
      `curl ${baseUrl}/responses -H 'Content-Type: application/json'${key.get() ? ' -H "Authorization: Bearer $ANTIPHON_API_KEY"' : ""} \\\n  -d '{"model": "${model}", "input": "Hello!"}'`,
    ],
  ];
}
