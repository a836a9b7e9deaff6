// The start page: commands that connect a model server, configuration of clients, and the first client request, live.

import { baseUrl, getJson, key, serverUrl } from "../lib/api.js";
import { announce, copyButton, h, icon } from "../lib/dom.js";
import { cut, plain } from "../lib/text.js";
import { Watch } from "../lib/watch.js";
import { CLIENT } from "./options.js";

const EVERY = 3000; // ms between polls for client requests

/** Default base URLs of model servers. llama.cpp's own default port is Antiphon's. */
const USUAL = {
  Ollama: "http://127.0.0.1:11434/v1",
  vLLM: "http://127.0.0.1:8000/v1",
  "llama.cpp": "http://127.0.0.1:8081/v1",
  "LM Studio": "http://127.0.0.1:1234/v1",
};

export class Start {
  /** @param {any} place its element */
  constructor(place) {
    this.connect = h("section", { class: "start-card", "aria-labelledby": "start-connect", hidden: true });
    this.clients = h("section", { class: "start-card", "aria-labelledby": "start-clients" });
    this.arrived = h("p", { class: "start-arrived", role: "status", hidden: true });
    place.replaceChildren(this.connect, this.clients, this.arrived);
    this.since = Math.floor(Date.now() / 1000);
    this.watch = new Watch(() => this.#look(), EVERY);
  }

  /** @param {any} about the server's configuration */
  offer(about) {
    const demo = about.backends.some(({ profile }) => profile === "demo");
    this.connect.hidden = !demo;
    if (demo) this.#connect();
  }

  /** @param {string} model the model in the examples */
  name(model) {
    this.clients.replaceChildren(
      h("h3", { id: "start-clients" }, "Point your tools here"),
      ...clientLines(model).map(([name, line]) => lineView(name, line)),
      h("p", { class: "note" }, "More clients are listed under ", h("a", { href: "#/about" }, "About"), "."),
    );
  }

  start() {
    this.watch.start();
  }

  stop() {
    this.watch.stop();
  }

  async #connect() {
    const { data, looked } = await getJson("antiphon/local-servers").catch(() => ({ data: [], looked: false }));
    const found = data.map(({ name, url, models }) => [
      name,
      url,
      models.length ? models.slice(0, 3).join(", ") : "no models yet",
    ]);
    const known = new Set(data.map(({ name }) => name));
    const usual = Object.entries(USUAL).filter(([name]) => !known.has(name));
    const rows = (lines) =>
      lines.map(([name, url, note]) => lineView(name, `antiphon serve --backend-url ${url}`, note));
    const first = found.length ? found : [usual.shift()];
    const place = found.length ? "Running on this machine" : looked ? "No model server was found on this machine." : "";
    this.connect.replaceChildren(
      h("h3", { id: "start-connect" }, "Connect a model"),
      h("p", {}, "No model is connected yet, so a built-in demo answers with canned replies. Restart the server with:"),
      ...(place ? [h("p", { class: "note" }, place)] : []),
      ...rows(first),
      h("details", {}, h("summary", {}, "Other servers"), h("div", { class: "start-lines" }, rows(usual))),
    );
  }

  // Show the newest client request since the page was opened.
  async #look() {
    const { data } = await getJson(`antiphon/responses?limit=5&created_after=${this.since}`).catch(() => ({
      data: [],
    }));
    const [name, value] = Object.entries(CLIENT)[0];
    const foreign = data.find(({ metadata }) => metadata?.[name] !== value);
    if (!foreign || foreign.id === this.seen) return;
    this.seen = foreign.id;
    this.arrived.hidden = false;
    this.arrived.replaceChildren(
      icon("plug"),
      h(
        "span",
        {},
        "A client has sent a request: ",
        h("b", { dir: "auto" }, plain(cut(foreign.preview || "(no text)", 60))),
        ` (${plain(foreign.model)})`,
      ),
      h("a", { href: `#/responses/${foreign.id}` }, "See what it sent"),
    );
    announce("A client has sent a request.");
  }
}

function clientLines(model) {
  const secret = key.get() ? "$ANTIPHON_API_KEY" : "unused";
  const root = serverUrl("").replace(/\/$/, "");
  return [
    ["Codex", `antiphon codex --url ${baseUrl}`],
    ["Claude Code", `ANTHROPIC_BASE_URL=${root} ANTHROPIC_AUTH_TOKEN=${secret} ANTHROPIC_MODEL=${model} claude`],
    ["OpenAI SDKs", `export OPENAI_BASE_URL=${baseUrl} OPENAI_API_KEY=${secret}`],
  ];
}

function lineView(name, line, note = "") {
  return h(
    "div",
    { class: "start-line" },
    h(
      "div",
      { class: "start-name" },
      h("b", {}, name),
      note ? h("span", { class: "note" }, plain(note)) : null,
      h("span", { class: "spring" }),
      copyButton(line, `Line for ${name}`, ""),
    ),
    h("code", { class: "start-code", dir: "ltr" }, plain(line)),
  );
}
