// A request beside the request to the backend that it becomes, with what was adapted.

import { copyButton, h } from "../lib/dom.js";
import { colour } from "../lib/markdown.js";
import { laidOut, plain } from "../lib/text.js";

const LONGEST = 60_000; // characters that get colours

export function json(value, label) {
  const text = laidOut(value);
  const block = h("pre", { class: "json", tabindex: 0, role: "region", "aria-label": label }, text);
  if (text.length <= LONGEST) colour(block, text, "json");
  return block;
}

// Where a field of a request goes, if not under its own name, by the API of the backend.
const CHAT = {
  name: "Chat Completions",
  input: "in messages",
  instructions: "in messages",
  previous_response_id: "its turns are in messages",
  conversation: "its items are in messages",
  text: "in response_format",
  reasoning: "as the effort",
  max_output_tokens: "as the limit of tokens",
};
const RESPONSES = {
  name: "Responses",
  previous_response_id: "its turns are in input",
  conversation: "its items are in input",
};
const MESSAGES = {
  ...CHAT,
  name: "Messages",
  instructions: "in system",
  text: "in output_config",
  reasoning: "in thinking",
};
const HERE = {
  store: "stays here",
  background: "stays here",
  include: "stays here",
  metadata: "stays here",
  truncation: "stays here",
  max_tool_calls: "stays here",
};

function apiOf(url) {
  return url?.endsWith("/responses") ? RESPONSES : url?.endsWith("/messages") ? MESSAGES : CHAT;
}

// What becomes of a field of a request, in words; fields of the same name are compared.
function mark(name, here, there, others) {
  if (!(name in there)) return others.absent ?? others.places[name] ?? HERE[name] ?? "left out";
  return JSON.stringify(here[name]) === JSON.stringify(there[name]) ? null : others.changed;
}

function fields(body, other, words, label) {
  return h(
    "div",
    { class: "json-fields", role: "group", "aria-label": label },
    Object.keys(body).map((name) => {
      const note = mark(name, body, other, words);
      return h(
        "details",
        {
          class: note ? "json-field marked" : "json-field",
          open:
            !["tools", "input", "messages", "instructions"].includes(name) || JSON.stringify(body[name]).length < 2000,
        },
        h("summary", {}, h("code", {}, plain(name)), note ? h("span", { class: "chip" }, note) : null),
        json(body[name], name),
      );
    }),
  );
}

export function translationView({ backend, profile, url, body, warnings }, request) {
  const api = apiOf(url);
  return [
    h(
      "p",
      { class: "note" },
      "Backend ",
      h("b", {}, plain(backend)),
      ", profile ",
      h("b", {}, plain(profile)),
      url ? [", ", h("code", {}, plain(url))] : "",
    ),
    warnings.length
      ? h(
          "div",
          { class: "warnings" },
          h("p", { class: "label" }, "Adapted"),
          h(
            "ul",
            {},
            warnings.map((warning) => h("li", {}, plain(warning))),
          ),
        )
      : h("p", { class: "note" }, "Nothing had to be adapted or left out."),
    h(
      "div",
      { class: "beside" },
      h(
        "section",
        { "aria-label": "Request" },
        h(
          "div",
          { class: "toolbar" },
          h("h3", {}, "Request"),
          copyButton(() => JSON.stringify(request, null, 2), "Request"),
        ),
        fields(request, body, { changed: "in another form", places: api }, "Fields of the request"),
      ),
      h(
        "section",
        { "aria-label": `${api.name} request` },
        h(
          "div",
          { class: "toolbar" },
          h("h3", {}, api.name),
          copyButton(() => JSON.stringify(body, null, 2), `${api.name} request`),
        ),
        fields(body, request, { absent: "new", changed: "changed" }, `Fields of the ${api.name} request`),
      ),
    ),
  ];
}
