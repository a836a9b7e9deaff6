// One item of a response or of its input, as it is shown; drawn anew as it grows.

import { colour } from "../lib/colour.js";
import { button, h, icon } from "../lib/dom.js";
import { GrowingMarkdown } from "../lib/markdown.js";
import { pictureView } from "../lib/picture.js";
import { bytes } from "../lib/tables.js";
import { count, cut, many, plain, pretty, webUrl, wholeSeconds } from "../lib/text.js";
import { citedFiles, containerFiles } from "./files.js";

const FOLDED_LINES = 12;
const FOLDED = 2_000; // characters

// Make the view of an item: {node, draw(entry)}. `act` has what its buttons do: output(item, text), approve(item, yes),
// and `answers`, the items that answered calls and approvals, by the id of these.
export function itemView(item, act = {}) {
  const make = VIEWS[item.type] ?? (item.type?.endsWith("_output") ? OutputView : CallView);
  return new make(item, act);
}

// Text that grows, as Markdown.
class MarkdownPart {
  constructor() {
    this.markdown = new GrowingMarkdown();
    this.node = this.markdown.node;
  }

  draw(text, done) {
    this.markdown.update(text, done);
  }
}

// Text that grows, as it is.
class PlainPart {
  constructor(tag = "div", /** @type {any} */ props = { class: "plain", dir: "auto" }) {
    this.node = h(tag, props);
    this.drawn = 0;
  }

  draw(text) {
    if (text.length < this.drawn) {
      this.node.replaceChildren();
      this.drawn = 0;
    }
    if (text.length === this.drawn) return;
    const last = this.node.lastChild;
    const added = plain(text.slice(this.drawn));
    if (last && last.data.length < 4000) last.appendData(added);
    else this.node.append(added);
    this.drawn = text.length;
  }
}

// A text that a person wrote. A long one is folded, and the rest of it is not in the page before it is asked for.
class WrittenPart {
  constructor() {
    this.body = h("div", { class: "plain", dir: "auto" });
    this.node = h("div", { class: "written-text" }, this.body);
  }

  draw(text) {
    if (text === this.text) return;
    this.text = text;
    const start = startOf(text);
    this.body.textContent = plain(start);
    const more = button(
      `Show all ${count(text.length)} characters`,
      () => {
        this.body.replaceChildren(...(text.match(/[\s\S]{1,4000}/gu) ?? []).map(plain));
        more.remove();
      },
      { class: "quiet" },
    );
    this.node.replaceChildren(this.body, ...(start === text ? [] : [more]));
  }
}

// The first lines of a text, or all of it, if it is hardly longer.
function startOf(text) {
  const lines = text.split("\n", FOLDED_LINES + 4);
  const start = lines.length > FOLDED_LINES + 3 ? `${lines.slice(0, FOLDED_LINES).join("\n")}…` : text;
  return start.length > FOLDED + 200 ? `${start.slice(0, FOLDED)}…` : start;
}

class MessageView {
  constructor(item) {
    this.node = h("div", { class: `item message ${item.role === "assistant" ? "assistant" : "given"}` });
    if (item.role && !["assistant", "user"].includes(item.role))
      this.node.append(h("p", { class: "label" }, item.role));
    this.role = item.role;
    this.parts = [];
  }

  draw({ item, done }) {
    const content =
      typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : (item.content ?? []);
    content.forEach((part, index) => {
      if (!part) return;
      const text = part.text ?? part.refusal;
      let view = this.parts[index];
      if (!view) {
        if (typeof text !== "string") view = { node: mediaView(part), draw() {} };
        else if (part.type === "output_text") view = new MarkdownPart();
        else if (part.type === "refusal") view = new PlainPart("div", { class: "plain refusal", dir: "auto" });
        else view = new WrittenPart();
        this.parts[index] = view;
        this.node.append(view.node);
      }
      if (typeof text === "string") view.draw(text, done);
    });
    if (done && !this.sources) {
      const annotations = content.flatMap((part) => part.annotations ?? []);
      this.sources = [sourcesView(annotations), citedFiles(annotations)].filter(Boolean);
      this.node.append(...this.sources);
    }
  }
}

// What the text cites: links to pages, names of files.
function sourcesView(annotations) {
  const sources = new Map();
  for (const annotation of annotations) {
    if (annotation.type === "container_file_citation") continue;
    const url = annotation.url && webUrl(annotation.url);
    const name = plain(annotation.title || annotation.filename || annotation.url || annotation.file_id || "source");
    sources.set(
      url ?? name,
      url ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, name) : name,
    );
  }
  if (!sources.size) return null;
  return h(
    "div",
    { class: "sources" },
    h("p", { class: "label" }, "Sources"),
    h(
      "ol",
      {},
      [...sources.values()].map((source) => h("li", {}, source)),
    ),
  );
}

function mediaView(part) {
  const image = part.image_url ?? part.url;
  const source = typeof image === "string" ? image : image?.url;
  if (source) return imageView(source, part.type === "input_image" ? "Attached image" : "Image");
  if (part.type === "input_file")
    return h(
      "p",
      { class: "attachment" },
      icon("file"),
      plain(part.filename ?? part.file_id ?? part.file_url ?? "unnamed file"),
      part.file_data ? h("span", { class: "note" }, bytes((part.file_data.length * 3) / 4)) : null,
    );
  return h("pre", { class: "json", tabindex: 0 }, pretty(part));
}

// An image that came with the text is shown; one that is elsewhere is not loaded, but linked.
export function imageView(source, label) {
  if (/^data:image\/(png|jpe?g|gif|webp|avif);base64,/i.test(source)) return pictureView(source, label);
  const url = webUrl(source);
  return h(
    "p",
    { class: "attachment" },
    url
      ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, `${label}: ${cut(url, 80)}`)
      : label,
  );
}

// What the model thought: while it thinks, for how long and its last line; later, folded.
class ReasoningView {
  constructor() {
    this.title = h("span", {}, "Reasoning");
    this.line = h("span", { class: "thought", dir: "auto" });
    this.summary = h("summary", {}, this.title, this.line);
    this.node = h("details", { class: "item reasoning" }, this.summary);
    this.parts = new Map();
    this.began = undefined; // since when the page sees the model think
  }

  draw({ item, done }) {
    let last = "";
    for (const name of ["summary", "content"]) {
      (item[name] ?? []).forEach((part, index) => {
        if (typeof part?.text !== "string") return;
        const place = `${name}${index}`;
        if (!this.parts.has(place)) {
          this.parts.set(place, new PlainPart());
          this.node.append(this.parts.get(place).node);
        }
        this.parts.get(place).draw(part.text);
        last = part.text;
      });
    }
    if (done) this.#end(item);
    else this.#think(last);
  }

  #think(text) {
    this.began ??= performance.now();
    this.timer ??= setInterval(() => (this.node.isConnected ? this.#tell() : this.#stop()), 1000);
    this.line.textContent = plain(cut(text.slice(-300).trimEnd().split("\n").at(-1), 120));
    this.#tell();
  }

  #tell() {
    this.title.textContent = `Thinking, ${wholeSeconds(performance.now() - this.began)}`;
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = null;
  }

  #end(item) {
    this.#stop();
    this.line.textContent = "";
    this.title.textContent =
      this.began === undefined ? "Reasoning" : `Thought for ${wholeSeconds(performance.now() - this.began)}`;
    if (!this.parts.size && !this.hidden) {
      this.hidden = h(
        "p",
        { class: "note" },
        item.encrypted_content ? "The reasoning is encrypted." : "The model did not show its reasoning.",
      );
      this.node.append(this.hidden);
    }
  }
}

// The title and the icon of each type of call.
const CALLS = {
  function_call: ["Function call", "wrench"],
  custom_tool_call: ["Tool call", "wrench"],
  mcp_call: ["MCP call", "plug"],
  mcp_list_tools: ["MCP tools listed", "plug"],
  mcp_approval_request: ["Approval needed", "shield-check"],
  mcp_approval_response: ["Approval", "shield-check"],
  web_search_call: ["Web search", "globe"],
  file_search_call: ["File search", "file-search"],
  code_interpreter_call: ["Code interpreter", "code"],
  image_generation_call: ["Image", "image"],
  shell_call: ["Shell", "terminal"],
  local_shell_call: ["Shell", "terminal"],
  apply_patch_call: ["Patch", "file"],
  computer_call: ["Computer", "monitor"],
  compaction: ["Compaction", "list"],
};
const titleOf = (type) => CALLS[type]?.[0] ?? type;

// What a call is, and of what: an approval asks a question.
function named(item) {
  const names = [item.server_label, item.name].filter(Boolean);
  if (item.type === "mcp_approval_request" && names.length === 2)
    return [
      h(
        "span",
        {},
        "Approval needed: run ",
        h("code", {}, plain(item.name)),
        " on ",
        h("code", {}, plain(item.server_label)),
        "?",
      ),
    ];
  return [
    h("span", { class: "label" }, titleOf(item.type)),
    names.length ? h("code", {}, plain(names.join(" · "))) : "",
  ];
}

// Shown in its own way, or of no interest to a reader: the rest of an item's fields are listed by name.
const OWN = new Set([
  "id",
  "type",
  "status",
  "name",
  "arguments",
  "input",
  "code",
  "call_id",
  "server_label",
  "output",
  "outputs",
  "results",
  "result",
  "error",
  "tools",
  "approval_request_id",
  "role",
  "content",
  "encrypted_content",
  "caller",
  "namespace",
  "container_id",
  "environment",
  "max_output_length",
]);
const WORKING = new Set(["in_progress", "searching", "interpreting", "generating", "calling"]);

// A call of any kind, the client's or the server's: what it is, its state, what it was given, what came of it.
class CallView {
  constructor(item, act) {
    this.act = act;
    this.title = h("span", { class: "call-title" });
    this.state = h("span", { class: "chip" });
    this.given = new PlainPart("pre", { class: "json", tabindex: 0, role: "region", "aria-label": "Arguments" });
    this.given.node.hidden = true;
    this.rest = h("div", { class: "call-rest" });
    this.node = h(
      "div",
      { class: "item call", role: "group", "aria-label": titleOf(item.type) },
      h("div", { class: "call-head" }, this.title, this.state),
      this.given.node,
      this.rest,
    );
  }

  draw({ item, done, images }) {
    this.title.replaceChildren(icon(CALLS[item.type]?.[1] ?? "wrench"), ...named(item));
    const state = item.error ? "failed" : (item.status ?? (done ? "" : "in_progress"));
    this.state.textContent = state.replaceAll("_", " ");
    this.state.className = `chip ${WORKING.has(state) ? "working" : state}`;
    this.state.hidden = !state;
    const given = item.arguments ?? item.input ?? item.code;
    if (typeof given === "string" && given) {
      this.given.node.hidden = false;
      if (done) this.#finishGiven(given, item.code === undefined ? "json" : "python");
      else this.given.draw(given);
    }
    if (images.length && !done)
      this.rest.replaceChildren(imageView(`data:image/png;base64,${images.at(-1)}`, "Partial image"));
    if (done && !this.finished) {
      this.finished = true;
      this.rest.replaceChildren(...outcome(item), ...this.#buttons(item));
    }
  }

  #finishGiven(given, language) {
    if (this.coloured) return;
    this.coloured = true;
    const text = language === "json" ? pretty(given) : plain(given);
    this.given.node.replaceChildren(text);
    if (text.length < 20_000) colour(this.given.node, text, language);
  }

  // The controls of a call that waits, or how it was answered.
  #buttons(item) {
    if (item.type === "mcp_approval_request") {
      const given = this.act.answers?.get(item.id);
      if (given) return [h("p", { class: "note" }, given.approve ? "Approved." : "Denied.")];
      return this.act.approve ? [this.#approval(item)] : [];
    }
    if (!["function_call", "custom_tool_call"].includes(item.type)) return [];
    if (this.act.answers?.has(item.call_id)) return [h("p", { class: "note" }, "Answered below.")];
    return this.act.output ? [this.#output(item)] : [];
  }

  #approval(item) {
    const answer = (yes) => () => {
      for (const each of buttons.querySelectorAll("button")) each.disabled = true;
      this.act.approve(item, yes);
    };
    const buttons = h(
      "div",
      { class: "buttons" },
      button("Approve", answer(true), { class: "primary" }),
      button("Deny", answer(false)),
    );
    return buttons;
  }

  #output(item) {
    const id = `output-${item.id}`;
    const field = h("textarea", { id, rows: 2, spellcheck: "false" });
    const form = h(
      "form",
      { class: "call-output" },
      h("label", { for: id }, "Result to send back"),
      field,
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Send result")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      for (const each of form.elements) each.disabled = true;
      this.act.output(item, field.value);
    });
    return form;
  }
}

function outcome(item) {
  const shown = [];
  if (item.action?.commands)
    shown.push(
      terminal(
        item.action.commands.map((command) => h("span", { class: "typed" }, `$ ${plain(command)}\n`)),
        "Commands",
      ),
    );
  else if (item.action) shown.push(...actionView(item.action));
  if (item.queries?.length) shown.push(h("p", {}, `Searched for: ${plain(item.queries.join("; "))}`));
  const fields = Object.keys(item).filter(
    (name) => !OWN.has(name) && !["action", "queries"].includes(name) && isShown(item[name]),
  );
  if (fields.length) {
    shown.push(
      h(
        "dl",
        { class: "fields" },
        fields.flatMap((name) => [
          h("dt", {}, name.replaceAll("_", " ")),
          h("dd", {}, typeof item[name] === "object" ? pretty(item[name]) : plain(item[name])),
        ]),
      ),
    );
  }
  if (item.tools) {
    shown.push(
      h(
        "details",
        {},
        h("summary", {}, many(item.tools.length, "tool")),
        h(
          "ul",
          {},
          item.tools.map((tool) =>
            h(
              "li",
              {},
              h("code", {}, plain(tool.name ?? tool.type)),
              tool.description ? ` ${plain(cut(tool.description, 200))}` : "",
            ),
          ),
        ),
      ),
    );
  }
  if (item.type === "image_generation_call" && item.result) {
    shown.push(
      imageView(
        `data:image/${item.output_format ?? "png"};base64,${item.result}`,
        plain(item.revised_prompt ?? "The image"),
      ),
    );
  }
  for (const result of item.results ?? []) {
    shown.push(
      h(
        "details",
        {},
        h(
          "summary",
          {},
          `${plain(result.filename ?? result.file_id ?? "result")}${result.score === undefined ? "" : ` (${Number(result.score).toFixed(2)})`}`,
        ),
        h("div", { class: "plain" }, plain(result.text)),
      ),
    );
  }
  for (const output of item.outputs ?? []) {
    if (output.type === "image") shown.push(imageView(output.url ?? "", "Image from the code"));
    else if (output.logs !== undefined) shown.push(terminal([plain(output.logs)], "Code output"));
    else shown.push(outputView(pretty(output)));
  }
  const container = item.container_id ?? item.environment?.container_id;
  if (container && item.type !== "container") shown.push(containerFiles(container));
  if (item.output !== undefined && item.output !== null && item.output !== "") shown.push(outputView(item.output));
  if (item.error) shown.push(h("div", { class: "failure" }, plain(errorText(item.error))));
  return shown;
}

const isShown = (value) => value !== null && value !== "" && value !== undefined;

// What a hosted call did: {type, query, …}, or a word, as image calls have it.
function actionView(action) {
  if (typeof action === "string") return [h("p", {}, ACTIONS[action] ?? plain(action.replaceAll("_", " ")))];
  const links = (action.sources ?? []).map((source) => webUrl(source.url)).filter(Boolean);
  const said = action.query ?? action.queries?.join("; ") ?? action.url ?? "";
  const name = (action.type ?? "run").replaceAll("_", " ");
  return [
    said
      ? h("p", {}, `${name}: `, h("code", {}, plain(said)), action.pattern ? ` for “${plain(action.pattern)}”` : "")
      : h("p", {}, name),
    links.length
      ? h(
          "ul",
          {},
          links.map((url) =>
            h("li", {}, h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, cut(url, 90))),
          ),
        )
      : null,
  ].filter(Boolean);
}

const ACTIONS = { generate: "A new image", edit: "An edited image", auto: "An image" };

// What was typed and printed, as a terminal shows it.
function terminal(lines, label) {
  return h("pre", { class: "terminal", tabindex: 0, role: "region", "aria-label": label }, lines);
}

// What the commands of a shell printed, and how they ended.
function printed({ stdout, stderr, outcome }) {
  const end = outcome?.type === "timeout" ? "timed out" : outcome?.exit_code ? `exit code ${outcome.exit_code}` : "";
  return [
    plain(stdout ?? ""),
    stderr ? h("span", { class: "stderr" }, plain(stderr)) : null,
    end ? h("span", { class: "ended" }, `[${end}]\n`) : null,
  ].filter(Boolean);
}

function outputView(output) {
  if (Array.isArray(output) && output.length && output.every((part) => part?.outcome || part?.stdout !== undefined)) {
    const lines = output.flatMap(printed).filter((line) => line !== "");
    return terminal(lines.length ? lines : [h("span", { class: "ended" }, "(no output)")], "Output");
  }
  const parts = Array.isArray(output) ? output : [output];
  return h(
    "div",
    { class: "call-outcome" },
    h("p", { class: "label" }, "Output"),
    parts.map((part) => {
      if (part?.image_url) return imageView(part.image_url, "Image");
      return h(
        "pre",
        { class: "json", tabindex: 0, role: "region", "aria-label": "Output" },
        pretty(part?.text ?? part),
      );
    }),
  );
}

function errorText(error) {
  if (typeof error === "string") return error;
  const content = error.content?.map((part) => part.text ?? "").join("\n");
  return content || error.message || JSON.stringify(error);
}

// The output of a call, given by the client, or made by the server, which adds it before it has all of it.
class OutputView {
  constructor(item) {
    const title = item.type.replaceAll("_", " ").replace(" output", "").replace(" call", "");
    this.body = h("div", { class: "call-rest" });
    this.node = h(
      "div",
      { class: "item call given" },
      h("div", { class: "call-head" }, h("span", { class: "label" }, `Result of the ${title}`)),
      this.body,
    );
  }

  draw({ item }) {
    this.body.replaceChildren(outputView(item.output ?? item));
  }
}

class ApprovalView {
  constructor(item) {
    this.node = h(
      "div",
      { class: "item given approval" },
      icon(item.approve ? "check" : "x"),
      h("span", {}, item.approve ? "Approved." : "Denied.", item.reason ? ` ${plain(item.reason)}` : ""),
    );
  }

  draw() {}
}

const VIEWS = {
  message: MessageView,
  reasoning: ReasoningView,
  mcp_approval_response: ApprovalView,
};

// The items of a stored turn, drawn once.
export function itemViews(items, act) {
  return items.map((item) => {
    const view = itemView(typed(item), act);
    view.draw({ item: typed(item), done: true, images: [] });
    return view.node;
  });
}

const typed = (item) => (item.type ? item : { type: "message", ...item });
