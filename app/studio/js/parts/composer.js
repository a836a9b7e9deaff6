// The composer: message text and attachments.

import { button, byId, h, icon } from "../lib/dom.js";
import { count } from "../lib/text.js";
import { dataUrl } from "./files.js";

const LARGEST = 20_000_000; // bytes of a file
const TOUCH = matchMedia("(pointer: coarse)");

/** Whether a key sends the message: Enter, except on touch devices, which have no Shift+Enter. */
export function sendsMessage(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !TOUCH.matches;
}

export class Composer {
  /** `onchange({text})` or `onchange({files})` is called after user changes, `onrecall()` on ArrowUp in an empty field. */
  constructor({ onsend, onpreview, onchange, onrecall }) {
    this.form = byId("composer");
    this.prompt = byId("prompt");
    this.onchange = onchange;
    this.files = [];
    if (TOUCH.matches) byId("prompt-hint").hidden = true;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      onsend();
    });
    this.prompt.addEventListener("input", () => onchange({ text: this.text }));
    this.prompt.addEventListener("keydown", (event) => {
      if (sendsMessage(event)) {
        event.preventDefault();
        onsend();
      } else if (event.key === "ArrowUp" && !this.text && !this.files.length) {
        event.preventDefault();
        onrecall();
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

  /** Replace the message. */
  set({ text = "", files = [] }) {
    this.prompt.value = text;
    this.files = files;
    this.#listFiles();
  }

  /** Clear the message after sending. */
  clear() {
    this.set({});
    this.onchange({ text: "" });
    this.onchange({ files: [] });
  }

  focus() {
    this.prompt.focus();
  }

  /** Focus the field, except on touch devices, whose keyboard would cover the page. */
  invite() {
    if (!TOUCH.matches) this.prompt.focus({ preventScroll: true });
  }

  // Build the input items; [] for an empty message.
  items() {
    const text = this.text.trim();
    if (!text && !this.files.length) return [];
    /** @type {any[]} */
    const parts = this.files.map(({ name, url }) =>
      url.startsWith("data:image/")
        ? { type: "input_image", image_url: url }
        : { type: "input_file", filename: name, file_data: url },
    );
    if (text) parts.push({ type: "input_text", text });
    return [{ type: "message", role: "user", content: parts }];
  }

  async #attach(files) {
    for (const file of files) {
      if (file.size > LARGEST) {
        byId("composer-problem").textContent = `${file.name} is larger than ${count(LARGEST / 1e6)} MB.`;
        continue;
      }
      this.files = [...this.files, { name: file.name, url: await dataUrl(file) }];
    }
    this.#filesChanged();
  }

  #filesChanged() {
    this.#listFiles();
    this.onchange({ files: this.files });
    this.focus();
  }

  #listFiles() {
    byId("attached").replaceChildren(
      ...this.files.map((file) =>
        h(
          "li",
          {},
          file.url.startsWith("data:image/") ? h("img", { src: file.url, alt: "" }) : icon("file"),
          h("span", {}, file.name),
          button(
            icon("x"),
            () => {
              this.files = this.files.filter((each) => each !== file);
              this.#filesChanged();
            },
            { class: "quiet only", "aria-label": `Remove ${file.name}` },
          ),
        ),
      ),
    );
  }
}
