// Option values of a conversation: conversion from the panel to a request and back.

import { many, plain } from "../lib/text.js";

/**
 * @typedef {Object<string, string | boolean>} Fields values by field id
 * @typedef {{fields: Fields, prompt: any, tools: Object<string, any>}} State
 *   `prompt` is {id, version, variables} or null; `tools` maps names of enabled hosted tools to their settings
 */

/** @type {Fields} */
export const DEFAULTS = {
  instructions: "",
  functions: "",
  schema: "",
  effort: "",
  summary: "",
  "tool-choice": "auto",
  max_output_tokens: "",
  temperature: "",
  top_p: "",
  store: true,
  background: true,
  truncation: false,
  extra: "",
};

// Expected content of JSON fields, for error messages.
export const JSON_FIELDS = { functions: "a JSON array of tools", schema: "a JSON Schema", extra: "a JSON object" };

const LABELS = {
  functions: "Functions",
  schema: "Structured output",
  extra: "Other parameters",
};
const NUMBERS = ["temperature", "top_p", "max_output_tokens"];
const INCLUDES = {
  web_search: "web_search_call.action.sources",
  file_search: "file_search_call.results",
  code_interpreter: "code_interpreter_call.outputs",
};
const TOOL_NAMES = {
  web_search: "Web search",
  file_search: "File search",
  code_interpreter: "Code interpreter",
  shell: "Shell",
  image_generation: "Image generation",
};

// Parameters of a single turn, or set by the studio itself.
const OF_A_TURN = new Set(["input", "model", "stream", "previous_response_id", "conversation", "background", "store"]);

// Request metadata that marks the studio's conversations for the list filter.
export const CLIENT = { "antiphon.client": "studio" };

// Request metadata of a first turn that was edited or retried: the id of the first turn that it replaced originally.
export const BRANCH_OF = "antiphon.branch_of";

/** The key of a hosted tool's settings. */
export function toolName(declaration) {
  return declaration.server_label ?? declaration.type;
}

/** The display name of a hosted tool. MCP servers are labelled, since their names are arbitrary. */
export function toolTitle(declaration) {
  if (declaration.type === "mcp") return `${declaration.server_label} (MCP)`;
  return TOOL_NAMES[declaration.type] ?? declaration.type.replaceAll("_", " ");
}

export class OptionValues {
  /** @param {Partial<State>} state @param {any} about the server's configuration, from /v1/antiphon/about */
  constructor(state = {}, about = {}) {
    this.fields = { ...DEFAULTS, ...state.fields };
    this.prompt = state.prompt ?? null;
    this.tools = state.tools ?? {};
    this.about = about;
  }

  /** @returns {State} */
  state() {
    return { fields: this.fields, prompt: this.prompt, tools: this.tools };
  }

  /** Declarations of the server's hosted tools. */
  get offered() {
    return [...(this.about.file_search ? [{ type: "file_search" }] : []), ...(this.about.tools ?? [])];
  }

  /** Build the request parameters, without the model. Throws `OptionError` for an invalid field. */
  request() {
    const { fields } = this;
    /** @type {any} */
    const request = {};
    if (this.prompt) request.prompt = this.prompt;
    if (text(fields.instructions)) request.instructions = text(fields.instructions);
    const hosted = this.offered.filter((declaration) => this.tools[toolName(declaration)]);
    const tools = [...this.#functions(), ...hosted.map((declaration) => this.#declaration(declaration))];
    if (tools.length) request.tools = tools;
    if (tools.length && fields["tool-choice"] !== "auto") request.tool_choice = fields["tool-choice"];
    const include = hosted.map(({ type }) => INCLUDES[type]).filter(Boolean);
    if (include.length) request.include = [...new Set(include)];
    const schema = this.#parsed("schema");
    if (schema) request.text = { format: formatOf(schema) };
    const reasoning = Object.entries({ effort: fields.effort, summary: fields.summary }).filter(([, value]) => value);
    if (reasoning.length) request.reasoning = Object.fromEntries(reasoning);
    for (const name of NUMBERS) if (text(fields[name]) !== "") request[name] = Number(text(fields[name]));
    if (fields.truncation) request.truncation = "auto";
    if (!fields.store) request.store = false;
    else if (fields.background && this.about.background !== false) request.background = true;
    return { ...request, ...this.#parsed("extra") };
  }

  /**
   * Restore options from a request. Parameters without a field go into `extra`, and unknown tools into `functions`, so
   * that the next request repeats them.
   */
  static from(request, about = {}) {
    const values = new OptionValues({}, about);
    const { fields } = values;
    const rest = Object.fromEntries(Object.entries(request).filter(([name]) => !OF_A_TURN.has(name)));
    const take = (name) => {
      const value = rest[name];
      delete rest[name];
      return value;
    };
    fields.store = request.store ?? true;
    if (fields.store && about.background !== false) fields.background = Boolean(request.background);
    values.prompt = take("prompt") ?? null;
    fields.instructions = take("instructions") ?? "";
    if (values.prompt) fields.instructions = ""; // the stored value is the rendered template
    values.#takeTools(take("tools") ?? []);
    const known = values.offered.filter((declaration) => values.tools[toolName(declaration)]);
    const include = (take("include") ?? []).filter((name) => !known.some(({ type }) => INCLUDES[type] === name));
    if (include.length) rest.include = include;
    if (typeof rest.tool_choice === "string") fields["tool-choice"] = take("tool_choice");
    const { effort, summary, ...reasoning } = take("reasoning") ?? {};
    fields.effort = effort ?? "";
    fields.summary = summary ?? "";
    if (Object.keys(reasoning).length) rest.reasoning = { ...request.reasoning };
    for (const name of NUMBERS) if (typeof rest[name] === "number") fields[name] = String(take(name));
    if (rest.truncation === "auto") fields.truncation = Boolean(take("truncation"));
    if (rest.truncation === "disabled") take("truncation");
    const { format } = rest.text ?? {};
    if (format?.schema && Object.keys(rest.text).length === 1 && same(format, formatOf(format.schema))) {
      fields.schema = JSON.stringify(format.schema, null, 2);
      take("text");
    }
    const metadata = Object.entries(take("metadata") ?? {}).filter(([name]) => !(name in CLIENT || name === BRANCH_OF));
    if (metadata.length) rest.metadata = Object.fromEntries(metadata);
    if (Object.keys(rest).length) fields.extra = JSON.stringify(rest, null, 2);
    return values;
  }

  /** Describe options that differ from their defaults: [{text, field}], with the id of the control. */
  set() {
    const { fields } = this;
    const told = [];
    if (this.prompt) told.push({ text: `prompt ${this.prompt.id}`, field: "template" });
    for (const declaration of this.offered) {
      const setting = this.tools[toolName(declaration)];
      if (setting) told.push({ text: this.#told(declaration, setting), field: `tool-${toolName(declaration)}` });
    }
    for (const [id, words] of Object.entries(CHIPS)) {
      if (fields[id] !== DEFAULTS[id]) told.push({ text: words(fields[id]), field: id });
    }
    return told;
  }

  /** Reset an option, by the field id from `set`. */
  unset(field) {
    if (field === "template") this.prompt = null;
    else if (field.startsWith("tool-") && field !== "tool-choice") delete this.tools[field.slice("tool-".length)];
    else this.fields[field] = DEFAULTS[field];
  }

  #told(declaration, setting) {
    const title = plain(toolTitle(declaration));
    if (setting.allowed) return `${title}: ${many(setting.allowed.length, "tool")}`;
    return setting.title ? `${title}: ${plain(setting.title)}` : title;
  }

  #declaration(declaration) {
    const setting = this.tools[toolName(declaration)];
    if (declaration.type === "file_search") {
      if (!setting.store)
        throw new OptionError(
          "File search needs a vector store. Choose or create one under Options.",
          "tool-file_search",
        );
      return { type: "file_search", vector_store_ids: [setting.store] };
    }
    return setting.allowed ? { ...declaration, allowed_tools: setting.allowed } : declaration;
  }

  #functions() {
    const given = this.#parsed("functions") ?? [];
    return (Array.isArray(given) ? given : [given]).map((tool) => {
      // Chat Completions nests the function.
      if (tool.type === "function" && tool.function) return { type: "function", ...tool.function };
      return { type: "function", ...tool };
    });
  }

  #takeTools(tools) {
    const others = [];
    for (const tool of tools) {
      const declaration = this.offered.find((each) => each.type === tool.type && toolName(each) === toolName(tool));
      const setting = declaration && settingOf(tool, declaration);
      if (setting) this.tools[toolName(tool)] = setting;
      else others.push(tool);
    }
    this.fields.functions = others.length ? JSON.stringify(others, null, 2) : "";
  }

  #parsed(field) {
    const written = text(this.fields[field]);
    if (!written) return null;
    try {
      return JSON.parse(written);
    } catch {
      throw new OptionError(`Invalid '${LABELS[field]}': must be ${JSON_FIELDS[field]}.`, field);
    }
  }
}

/** Invalid options; `field` is the id of the control to correct. */
export class OptionError extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

const CHIPS = {
  instructions: () => "instructions",
  schema: () => "JSON Schema",
  effort: (value) => `reasoning: ${value}`,
  summary: (value) => `reasoning summary: ${value}`,
  "tool-choice": (value) => `tool choice: ${value}`,
  max_output_tokens: (value) => `max output tokens: ${value}`,
  temperature: (value) => `temperature: ${value}`,
  top_p: (value) => `top p: ${value}`,
  background: () => "ends with this page",
  truncation: () => "truncation",
  functions: (value) => functionsOf(value),
  store: () => "not stored",
  extra: () => "other parameters",
};

// Extract the settings of a declared hosted tool; null if the declaration has additional fields.
function settingOf(tool, declaration) {
  const { vector_store_ids: stores, allowed_tools: allowed, ...rest } = tool;
  if (tool.type === "file_search") return stores?.length === 1 && same(rest, declaration) ? { store: stores[0] } : null;
  const { allowed_tools: _, ...declared } = declaration;
  if (!includes(declared, rest)) return null;
  return Array.isArray(allowed) && !same(allowed, declaration.allowed_tools) ? { allowed } : {};
}

// Compare the stored fields only: stored declarations omit secrets.
const includes = (declared, stored) => Object.entries(stored).every(([name, value]) => same(value, declared[name]));

const formatOf = (schema) => ({
  type: "json_schema",
  name: schema.title?.replace(/\W+/g, "_") || "answer",
  schema,
  strict: true,
});

const text = (value) => String(value ?? "").trim();

function functionsOf(written) {
  try {
    const given = JSON.parse(written);
    return many(Array.isArray(given) ? given.length : 1, "function");
  } catch {
    return "functions";
  }
}

function same(one, other) {
  return JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
}

function sorted(value) {
  if (!value || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(sorted);
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((name) => [name, sorted(value[name])]),
  );
}
