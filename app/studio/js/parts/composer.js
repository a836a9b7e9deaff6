// The message: its text, and the files that are attached to it.

import { button, byId, h, icon } from "../lib/dom.js";
import { count } from "../lib/text.js";
import { dataUrl } from "./files.js";

const LARGEST = 20_000_000; // bytes of a file

export class Composer {
  constructor({ onsend, onpreview }) {
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
    zone.addEventListener(
      "dragleave",
      (event) => zone.contains(event.relatedTarget) || zone.classList.remove("dropping"),
    );
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      zone.classList.remove("dropping");
      this.#attach([...event.dataTransfer.files]);
    });
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
    /** @type {any[]} */
    const parts = this.files.map(({ name, url }) =>
      url.startsWith("data:image/")
        ? { type: "input_image", image_url: url }
        : { type: "input_file", filename: name, file_data: url },
    );
    if (text) parts.push({ type: "input_text", text });
    return [{ type: "message", role: "user", content: parts }];
  }

  // Put an input back to be edited.
  restore(items) {
    this.clear();
    const parts = items
      .filter((item) => item.role === "user")
      .flatMap((item) =>
        typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : item.content,
      );
    this.text = parts
      .filter((part) => part.type === "input_text")
      .map((part) => part.text)
      .join("\n");
    this.files = parts.flatMap((part) => {
      if (part.type === "input_image" && part.image_url?.startsWith("data:"))
        return [{ name: "image", url: part.image_url }];
      return part.type === "input_file" && part.file_data ? [{ name: part.filename, url: part.file_data }] : [];
    });
    this.#listFiles();
    this.focus();
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
    byId("attached").replaceChildren(
      ...this.files.map((file) =>
        h(
          "li",
          {},
          file.url.startsWith("data:image/") ? h("img", { src: file.url, alt: "" }) : null,
          h("span", {}, file.name),
          button(
            icon("x"),
            () => {
              this.files.splice(this.files.indexOf(file), 1);
              this.#listFiles();
              this.focus();
            },
            { class: "quiet only", "aria-label": `Remove ${file.name}` },
          ),
        ),
      ),
    );
  }
}
