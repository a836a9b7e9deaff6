// The options panel: fields, presets, prompt templates and hosted tools. Its values are `OptionValues`.

import { asked, confirmed } from "../lib/dialog.js";
import { announce, button, byId, h, icon } from "../lib/dom.js";
import { plain } from "../lib/text.js";
import { DEFAULTS, JSON_FIELDS, OptionError, OptionValues } from "../talk/options.js";
import { Toolbox } from "./toolbox.js";

const PRESETS = "antiphon.presets"; // {name: state}, in the browser

export class Options {
  /**
   * `onchange(values)` is called after user changes; `onopen(control)` to focus an invalid control or a chip's control.
   */
  constructor({ onchange, onopen }) {
    this.onchange = onchange;
    this.onopen = onopen;
    this.about = {}; // the server's configuration
    this.told = ""; // content of the chips
    this.known = false; // whether `about` is loaded
    this.wanted = new OptionValues();
    this.toolbox = new Toolbox({ onchange: () => this.#changed() });
    byId("options").addEventListener("input", () => this.#changed());
    byId("options").addEventListener("change", () => this.#changed());
    for (const id of Object.keys(JSON_FIELDS)) byId(id).addEventListener("change", () => this.#check(id));
    byId("template").addEventListener("change", () => this.#chooseTemplate());
    byId("template-version").addEventListener("change", () => this.#listVariables());
    byId("preset").addEventListener("change", ({ target }) => target.value && this.#use(this.#presets()[target.value]));
    byId("preset-save").addEventListener("click", () => this.#save());
    byId("preset-delete").addEventListener("click", () => this.#delete());
    byId("options-reset").addEventListener("click", () => this.clear());
    this.#listPresets();
    this.#tell();
  }

  // Apply the server's configuration.
  offer(about) {
    this.about = about;
    this.known = true;
    byId("templates").hidden = !about.prompts?.length;
    byId("template").replaceChildren(
      h("option", { value: "" }, "None"),
      ...(about.prompts ?? []).map(({ id }) => h("option", { value: id }, plain(id))),
    );
    byId("background").disabled = about.background === false;
    this.toolbox.offer(about);
    this.show(this.wanted);
  }

  // Set all controls without reporting a change.
  show(values) {
    this.wanted = values;
    for (const [id, value] of Object.entries(values.fields)) if (id in DEFAULTS) write(id, value);
    for (const id of Object.keys(JSON_FIELDS)) this.#check(id);
    this.toolbox.restore(values.tools);
    const offered = this.about.prompts?.some(({ id }) => id === values.prompt?.id);
    byId("template").value = offered ? values.prompt.id : "";
    this.#fillTemplate(offered ? values.prompt : null);
    this.#tell();
  }

  // Read the controls. Until the configuration is loaded, wanted prompts and tools are retained.
  get values() {
    const fields = Object.fromEntries(Object.keys(DEFAULTS).map((id) => [id, read(id)]));
    if (!this.known) return new OptionValues({ ...this.wanted.state(), fields }, this.about);
    return new OptionValues({ fields, prompt: this.#prompt(), tools: this.toolbox.state() }, this.about);
  }

  clear() {
    byId("preset").value = "";
    this.#use({});
    announce("Options reset.");
  }

  // Build the request parameters. Throws after focusing an invalid field.
  parameters() {
    const model = byId("model").hidden ? byId("model-name").value.trim() : byId("model").value;
    try {
      return { model, ...this.values.request() };
    } catch (error) {
      if (error instanceof OptionError) {
        if (error.field in JSON_FIELDS) this.#check(error.field);
        this.onopen(byId(error.field));
      }
      throw error;
    }
  }

  #use(state) {
    this.show(new OptionValues(state, this.about));
    this.onchange(this.values);
  }

  #changed() {
    this.wanted = this.values;
    this.#tell();
    this.onchange(this.wanted);
  }

  // Draw a chip for each changed option; a chip opens or resets its option.
  #tell() {
    const told = this.values.set();
    const shown = JSON.stringify(told);
    if (shown === this.told) return; // do not replace a chip during a click
    this.told = shown;
    byId("switched-on").replaceChildren(
      ...told.map(({ text, field }) =>
        h(
          "li",
          { class: "chip" },
          button(plain(text), () => this.onopen(byId(field)), { title: "Change this option" }),
          button(icon("x"), () => this.#unset(field), { "aria-label": `Remove ${plain(text)}` }),
        ),
      ),
    );
    byId("options-reset").hidden = !told.length;
  }

  #unset(field) {
    const { values } = this;
    values.unset(field);
    this.#use(values.state());
    byId("prompt").focus();
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
    localStorage.setItem(PRESETS, JSON.stringify({ ...this.#presets(), [name]: this.values.state() }));
    this.#listPresets(name);
    announce(`Saved as ${name} in this browser.`);
  }

  async #delete() {
    const name = byId("preset").value;
    if (!name) {
      announce("Choose the preset to delete first.");
      byId("preset").focus();
      return;
    }
    const text = `“${name}” is stored only in this browser.`;
    if (!(await confirmed({ title: "Delete this preset?", text, verb: "Delete" }))) return;
    const { [name]: _, ...rest } = this.#presets();
    localStorage.setItem(PRESETS, JSON.stringify(rest));
    this.#listPresets();
    announce("Preset deleted.");
  }

  #chooseTemplate() {
    this.#fillTemplate(null);
    this.#changed();
  }

  #fillTemplate(prompt) {
    const chosen = this.about.prompts?.find(({ id }) => id === byId("template").value);
    const versions = chosen?.versions.filter(({ version }) => version !== null) ?? [];
    byId("template-version").replaceChildren(
      h("option", { value: "" }, "Newest"),
      ...versions.map(({ version }) => h("option", { value: version }, plain(version))),
    );
    const offered = versions.some(({ version }) => version === prompt?.version);
    byId("template-version").value = offered ? prompt.version : "";
    byId("template-versions").hidden = !versions.length;
    this.#listVariables(prompt?.variables);
  }

  #listVariables(values = {}) {
    const chosen = this.about.prompts?.find(({ id }) => id === byId("template").value);
    const wanted = byId("template-version").value;
    const version = chosen?.versions.find((each) => each.version === wanted) ?? chosen?.versions.at(-1);
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
  }

  #prompt() {
    const id = byId("template").value;
    if (!id) return null;
    const filled = [...byId("template-variables").querySelectorAll("input")].filter(({ value }) => value);
    const variables = Object.fromEntries(filled.map((field) => [field.dataset.variable, field.value]));
    const version = byId("template-version").value;
    return { id, ...(version ? { version } : {}), ...(filled.length ? { variables } : {}) };
  }

  #check(id) {
    const field = byId(id);
    let problem = "";
    try {
      if (field.value.trim()) JSON.parse(field.value);
    } catch (error) {
      problem = `Not JSON (must be ${JSON_FIELDS[id]}): ${error.message}`;
    }
    field.setAttribute("aria-invalid", problem ? "true" : "false");
    byId(`${id}-problem`).textContent = problem;
  }
}

const read = (id) => (byId(id).type === "checkbox" ? byId(id).checked : byId(id).value);

function write(id, value) {
  if (byId(id).type === "checkbox") byId(id).checked = value;
  else byId(id).value = value;
}
