// The form that a request is made of.

import { byId, button, h, icon } from "../lib/dom.js";
import { count } from "../lib/text.js";

const LARGEST = 20_000_000; // bytes of a file

export class Composer {
  // `onwrong` is called with a field of the options that cannot be sent as it is.
  constructor({ onsend, onpreview, onwrong }) {
    this.onwrong = onwrong;
    this.form = byId("composer");
    this.prompt = byId("prompt");
    this.files = [];
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      onsend();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        onsend();
      }
    });
    byId("preview").addEventListener("click", onpreview);
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", (event) => {
      this.#attach([...event.target.files]);
      event.target.value = "";
    });
    this.prompt.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) {
        event.preventDefault();
        this.#attach([...event.clipboardData.files]);
      }
    });
    const zone = byId("talk");
    zone.addEventListener("dragover", (event) => {
      event.preventDefault();
      zone.classList.add("dropping");
    });
    zone.addEventListener("dragleave", (event) => zone.contains(event.relatedTarget) || zone.classList.remove("dropping"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      zone.classList.remove("dropping");
      this.#attach([...event.dataTransfer.files]);
    });
    for (const [id, kind] of [["functions", "an array of functions, or one"], ["schema", "a JSON Schema"], ["extra", "an object"]]) {
      byId(id).addEventListener("change", () => this.#check(id, kind));
    }
  }

  get text() {
    return this.prompt.value;
  }

  set text(value) {
    this.prompt.value = value;
  }

  clear() {
    this.text = "";
    this.files = [];
    this.#listFiles();
  }

  focus() {
    this.prompt.focus();
  }

  // The input items of what is written and attached; [] if there is nothing.
  items() {
    const text = this.text.trim();
    if (!text && !this.files.length) return [];
    if (!this.files.length) return [{ type: "message", role: "user", content: [{ type: "input_text", text }] }];
    const parts = this.files.map(({ name, url }) => (url.startsWith("data:image/") ? { type: "input_image", image_url: url } : { type: "input_file", filename: name, file_data: url }));
    if (text) parts.push({ type: "input_text", text });
    return [{ type: "message", role: "user", content: parts }];
  }

  // Put an input back to be edited.
  restore(items) {
    this.clear();
    const parts = items.filter((item) => item.role === "user").flatMap((item) => (typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : item.content));
    this.text = parts.filter((part) => part.type === "input_text").map((part) => part.text).join("\n");
    this.files = parts.flatMap((part) => {
      if (part.type === "input_image" && part.image_url?.startsWith("data:")) return [{ name: "image", url: part.image_url }];
      return part.type === "input_file" && part.file_data ? [{ name: part.filename, url: part.file_data }] : [];
    });
    this.#listFiles();
    this.focus();
  }

  // The parameters beside the input; throws an Error that says which field is wrong.
  parameters() {
    const request = { model: byId("model").hidden ? byId("model-name").value.trim() : byId("model").value };
    const text = (id) => byId(id).value.trim();
    const number = (id) => (text(id) === "" ? undefined : Number(text(id)));
    if (text("instructions")) request.instructions = text("instructions");
    const tools = [...this.#functions(), ...this.#hosted()];
    if (tools.length) request.tools = tools;
    if (tools.length && text("tool-choice") !== "auto") request.tool_choice = text("tool-choice");
    const schema = this.#parse("schema", "a JSON Schema");
    if (schema) request.text = { format: { type: "json_schema", name: schema.title?.replace(/\W+/g, "_") || "answer", schema, strict: true } };
    const reasoning = { effort: text("effort") || undefined, summary: text("summary") || undefined };
    if (reasoning.effort || reasoning.summary) request.reasoning = reasoning;
    for (const name of ["temperature", "top_p", "max_output_tokens"]) {
      const value = number(name);
      if (value !== undefined) request[name] = value;
    }
    if (byId("truncation").checked) request.truncation = "auto";
    if (byId("background").checked) request.background = true;
    if (!byId("store").checked) request.store = false;
    return { ...request, ...(this.#parse("extra", "an object") ?? {}) };
  }

  #functions() {
    const given = this.#parse("functions", "an array of functions, or one");
    if (!given) return [];
    return (Array.isArray(given) ? given : [given]).map((tool) => {
      // Taken as Chat Completions has them, too.
      if (tool.type === "function" && tool.function) return { type: "function", ...tool.function };
      return { type: "function", ...tool };
    });
  }

  #hosted() {
    return [...byId("hosted").querySelectorAll("input:checked")].map((box) => JSON.parse(box.value));
  }

  #parse(id, kind) {
    this.#check(id, kind);
    const text = byId(id).value.trim();
    if (!text) return null;
    try {
      return JSON.parse(text);
    } catch {
      this.onwrong(byId(id));
      throw new Error(`“${byId(id).labels[0].textContent}” is not JSON: it has to be ${kind}.`);
    }
  }

  #check(id, kind) {
    const field = byId(id);
    let problem = "";
    try {
      if (field.value.trim()) JSON.parse(field.value);
    } catch (error) {
      problem = `Not JSON (${kind}): ${error.message}`;
    }
    field.setAttribute("aria-invalid", problem ? "true" : "false");
    byId(`${id}-problem`).textContent = problem;
  }

  async #attach(files) {
    for (const file of files) {
      if (file.size > LARGEST) {
        byId("composer-problem").textContent = `${file.name} is larger than ${count(LARGEST / 1e6)} MB.`;
        continue;
      }
      this.files.push({ name: file.name, url: await dataUrl(file) });
    }
    this.#listFiles();
    this.focus();
  }

  #listFiles() {
    byId("files").replaceChildren(...this.files.map((file) => h("li", {},
      file.url.startsWith("data:image/") ? h("img", { src: file.url, alt: "" }) : null, h("span", {}, file.name),
      button(icon("x"), () => {
        this.files.splice(this.files.indexOf(file), 1);
        this.#listFiles();
        this.focus();
      }, { class: "quiet only", "aria-label": `Remove ${file.name}` }))));
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
