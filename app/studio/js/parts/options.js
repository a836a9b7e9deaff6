// What a request has beside its input: the fields of the panel, presets of them, prompt templates, the tools.

import { asked, confirmed } from "../lib/dialog.js";
import { announce, byId, h } from "../lib/dom.js";
import { many, plain } from "../lib/text.js";
import { Toolbox } from "./toolbox.js";

const PRESETS = "antiphon.presets"; // {name: state}, in the browser
const STATE = "antiphon.options"; // in the tab

// The fields by id, each with its name where it is told that it is set; those without one are told in another way.
const FIELDS = {
  instructions: "instructions",
  functions: null,
  schema: "JSON Schema",
  effort: "reasoning",
  summary: "reasoning summary",
  "tool-choice": "tool choice",
  max_output_tokens: "max tokens",
  temperature: "temperature",
  top_p: "top p",
  store: null,
  background: "in the background",
  truncation: "truncation",
  extra: null,
};
const SHOWN = new Set(["effort", "summary", "tool-choice", "max_output_tokens", "temperature", "top_p"]); // with their values
const JSON_FIELDS = { functions: "an array of functions, or one", schema: "a JSON Schema", extra: "an object" };

export class Options {
  // `onwrong` is called with a field that cannot be sent as it is, `onopen` with one that is to be looked at.
  constructor({ onwrong, onopen }) {
    this.onwrong = onwrong;
    this.onopen = onopen;
    this.prompts = [];
    this.offered = false;
    this.toolbox = new Toolbox({ onchange: () => this.#changed() });
    this.defaults = this.#fields();
    byId("options").addEventListener("input", () => this.#changed());
    byId("options").addEventListener("change", () => this.#changed());
    for (const id of Object.keys(JSON_FIELDS)) byId(id).addEventListener("change", () => this.#check(id));
    byId("template").addEventListener("change", () => this.#chooseTemplate());
    byId("template-version").addEventListener("change", () => this.#listVariables());
    byId("preset").addEventListener(
      "change",
      ({ target }) => target.value && this.#restore(this.#presets()[target.value]),
    );
    byId("preset-save").addEventListener("click", () => this.#save());
    byId("preset-delete").addEventListener("click", () => this.#delete());
    byId("options-reset").addEventListener("click", () => this.clear());
    this.kept = JSON.parse(sessionStorage.getItem(STATE) ?? "null");
    this.#listPresets();
    if (this.kept) this.#restore(this.kept);
    else this.#changed();
  }

  // What the server offers is known.
  offer(about) {
    this.prompts = about.prompts ?? [];
    byId("templates").hidden = !this.prompts.length;
    byId("template").replaceChildren(
      h("option", { value: "" }, "None"),
      ...this.prompts.map(({ id }) => h("option", { value: id }, plain(id))),
    );
    this.toolbox.offer(about);
    this.offered = true;
    this.#restore(this.kept);
  }

  clear() {
    this.#restore({ fields: this.defaults, prompt: null, tools: {} });
    byId("preset").value = "";
    announce("The options are as at first.");
  }

  // The parameters of the request; throws an Error that says which field is wrong.
  parameters() {
    const request = { model: byId("model").hidden ? byId("model-name").value.trim() : byId("model").value };
    const prompt = this.#prompt();
    if (prompt) request.prompt = prompt;
    if (text("instructions")) request.instructions = text("instructions");
    const tools = [...this.#functions(), ...this.toolbox.declarations()];
    if (tools.length) request.tools = tools;
    if (tools.length && text("tool-choice") !== "auto") request.tool_choice = text("tool-choice");
    const include = this.toolbox.include();
    if (include.length) request.include = include;
    const schema = this.#parse("schema");
    if (schema)
      request.text = {
        format: { type: "json_schema", name: schema.title?.replace(/\W+/g, "_") || "answer", schema, strict: true },
      };
    const reasoning = { effort: text("effort") || undefined, summary: text("summary") || undefined };
    if (reasoning.effort || reasoning.summary) request.reasoning = reasoning;
    for (const name of ["temperature", "top_p", "max_output_tokens"])
      if (text(name) !== "") request[name] = Number(text(name));
    if (byId("truncation").checked) request.truncation = "auto";
    if (byId("background").checked) request.background = true;
    if (!byId("store").checked) request.store = false;
    return { ...request, ...(this.#parse("extra") ?? {}) };
  }

  // What is set, in words: [{text, field}], where `field` is the id of what sets it.
  set() {
    const told = [];
    const prompt = this.#prompt();
    if (prompt) told.push({ text: `prompt ${prompt.id}`, field: "template" });
    told.push(...this.toolbox.set());
    for (const [id, name] of Object.entries(FIELDS)) {
      const value = read(id);
      if (!name || value === this.defaults[id]) continue;
      told.push({ text: SHOWN.has(id) ? `${name}: ${value}` : name, field: id });
    }
    if (text("functions")) told.push({ text: functionsOf(text("functions")), field: "functions" });
    if (!byId("store").checked) told.push({ text: "not stored", field: "store" });
    if (text("extra")) told.push({ text: "other parameters", field: "extra" });
    return told;
  }

  #changed() {
    this.kept = this.#state();
    sessionStorage.setItem(STATE, JSON.stringify(this.kept));
    const told = this.set();
    byId("switched-on").replaceChildren(
      ...told.map(({ text, field }) =>
        h(
          "li",
          {},
          h(
            "button",
            { type: "button", class: "chip", title: "Change it", on: { click: () => this.onopen(byId(field)) } },
            plain(text),
          ),
        ),
      ),
    );
    byId("options-reset").hidden = !told.length;
  }

  #fields() {
    return Object.fromEntries(Object.keys(FIELDS).map((id) => [id, read(id)]));
  }

  #state() {
    // What the server offers may not be known yet: then what was chosen of it is kept.
    if (!this.offered && this.kept) return { ...this.kept, fields: this.#fields() };
    return { fields: this.#fields(), prompt: this.#prompt(), tools: this.toolbox.state() };
  }

  #restore(state) {
    for (const [id, value] of Object.entries(state.fields)) if (id in FIELDS) write(id, value);
    for (const id of Object.keys(JSON_FIELDS)) this.#check(id);
    this.toolbox.restore(state.tools ?? {});
    const known = this.prompts.some(({ id }) => id === state.prompt?.id);
    byId("template").value = known ? state.prompt.id : "";
    this.#chooseTemplate(known ? state.prompt : null);
  }

  #presets() {
    return JSON.parse(localStorage.getItem(PRESETS) ?? "{}");
  }

  #listPresets(chosen = "") {
    const names = Object.keys(this.#presets()).sort();
    byId("preset").replaceChildren(
      h("option", { value: "" }, names.length ? "Choose a preset" : "No presets yet"),
      ...names.map((name) => h("option", { value: name }, name)),
    );
    byId("preset").value = chosen;
    byId("preset-delete").disabled = !names.length;
  }

  async #save() {
    const name = await asked({
      title: "Save these options",
      label: "Name of the preset",
      value: byId("preset").value,
      verb: "Save",
    });
    if (!name) return;
    localStorage.setItem(PRESETS, JSON.stringify({ ...this.#presets(), [name]: this.#state() }));
    this.#listPresets(name);
    announce(`Saved as ${name}, in this browser.`);
  }

  async #delete() {
    const name = byId("preset").value;
    if (!name) {
      announce("Choose the preset to delete first.");
      byId("preset").focus();
      return;
    }
    if (
      !(await confirmed({
        title: "Delete this preset?",
        text: `“${name}” is kept in this browser alone.`,
        verb: "Delete",
      }))
    )
      return;
    const { [name]: _, ...rest } = this.#presets();
    localStorage.setItem(PRESETS, JSON.stringify(rest));
    this.#listPresets();
    announce("Deleted.");
  }

  #chooseTemplate(prompt = null) {
    const chosen = this.prompts.find(({ id }) => id === byId("template").value);
    const versions = chosen?.versions.filter(({ version }) => version !== null) ?? [];
    byId("template-version").replaceChildren(
      h("option", { value: "" }, "Newest"),
      ...versions.map(({ version }) => h("option", { value: version }, plain(version))),
    );
    byId("template-version").value = versions.some(({ version }) => version === prompt?.version) ? prompt.version : "";
    byId("template-versions").hidden = !versions.length;
    this.#listVariables(prompt?.variables);
  }

  #listVariables(values = {}) {
    const chosen = this.prompts.find(({ id }) => id === byId("template").value);
    const version =
      chosen?.versions.find((each) => each.version === byId("template-version").value) ?? chosen?.versions.at(-1);
    byId("template-variables").replaceChildren(
      ...(version?.variables ?? []).map(({ name, default: fallback }) =>
        h(
          "div",
          { class: "field" },
          h("label", { for: `variable-${name}` }, plain(name)),
          h("input", {
            id: `variable-${name}`,
            "data-variable": name,
            value: values[name] ?? "",
            placeholder: fallback ?? "",
            required: fallback === null,
            autocomplete: "off",
          }),
        ),
      ),
    );
    this.#changed();
  }

  #prompt() {
    const id = byId("template").value;
    if (!id) return null;
    const variables = Object.fromEntries(
      [...byId("template-variables").querySelectorAll("input")]
        .filter(({ value }) => value)
        .map((field) => [field.dataset.variable, field.value]),
    );
    const version = byId("template-version").value;
    return { id, ...(version ? { version } : {}), ...(Object.keys(variables).length ? { variables } : {}) };
  }

  #functions() {
    const given = this.#parse("functions");
    if (!given) return [];
    return (Array.isArray(given) ? given : [given]).map((tool) => {
      // Taken as Chat Completions has them, too.
      if (tool.type === "function" && tool.function) return { type: "function", ...tool.function };
      return { type: "function", ...tool };
    });
  }

  #parse(id) {
    this.#check(id);
    if (!text(id)) return null;
    try {
      return JSON.parse(text(id));
    } catch {
      this.onwrong(byId(id));
      throw new Error(`“${byId(id).labels[0].textContent}” is not JSON: it has to be ${JSON_FIELDS[id]}.`);
    }
  }

  #check(id) {
    const field = byId(id);
    let problem = "";
    try {
      if (field.value.trim()) JSON.parse(field.value);
    } catch (error) {
      problem = `Not JSON (${JSON_FIELDS[id]}): ${error.message}`;
    }
    field.setAttribute("aria-invalid", problem ? "true" : "false");
    byId(`${id}-problem`).textContent = problem;
  }
}

const text = (id) => byId(id).value.trim();
const read = (id) => (byId(id).type === "checkbox" ? byId(id).checked : byId(id).value);

function write(id, value) {
  if (byId(id).type === "checkbox") byId(id).checked = value;
  else byId(id).value = value;
}

function functionsOf(written) {
  try {
    const given = JSON.parse(written);
    return many(Array.isArray(given) ? given.length : 1, "function");
  } catch {
    return "functions";
  }
}
