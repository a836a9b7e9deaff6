// What is behind one turn: its events, the request beside its translation, the resource, and the code to repeat it.

import { getJson, send } from "../lib/api.js";
import { colour } from "../lib/colour.js";
import { byId, copyButton, h, schedule } from "../lib/dom.js";
import { plain } from "../lib/text.js";
import { LANGUAGES } from "./code.js";
import { statsOf } from "./stats.js";
import { stepsView } from "./steps.js";
import { Timeline } from "./timeline.js";
import { json, translationView } from "./translation.js";

export class Inspector {
  constructor() {
    this.turn = null;
    this.shown = false; // whether the panel is open; a closed one is drawn when it opens
    this.timeline = new Timeline();
    this.panels = { events: this.#events, request: this.#request, raw: this.#raw, code: this.#code };
    this.tabs = [...byId("inspector-tabs").querySelectorAll("[role=tab]")];
    this.tab = "events";
    for (const [index, tab] of this.tabs.entries()) {
      tab.addEventListener("click", () => this.open(tab.dataset.panel));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = this.tabs.at((index + step) % this.tabs.length);
        this.open(next.dataset.panel);
        next.focus();
      });
    }
    this.stats = byId("stats");
    byId("panel-events").append(h("div", { id: "stored-steps", class: "stack" }), this.timeline.node);
  }

  // Look at a turn: {request, live, log, warnings, requestId, number}.
  show(turn) {
    this.turn = turn;
    this.timeline.show(turn?.log ?? null);
    byId("inspector-title").textContent = !turn
      ? "Inspector"
      : turn.preview
        ? "Request preview"
        : `Turn ${turn.number}`;
    byId("inspector-empty").hidden = Boolean(turn);
    byId("inspector-body").hidden = !turn;
    this.open(this.tab);
  }

  // The panel opens or closes.
  reveal(shown) {
    this.shown = shown;
    this.open(this.tab);
  }

  // Look at a request that has not been sent.
  preview(request) {
    this.show({ request, live: { response: null }, log: null, preview: true });
    this.open("request");
  }

  // The turn has more events.
  update(turn) {
    if (turn !== this.turn || !this.shown) return;
    if (this.tab === "events") this.timeline.update();
    schedule(this.#drawStats);
    if (turn.live.ended && this.tab !== "events" && !turn.shownEnd) {
      turn.shownEnd = true;
      this.open(this.tab);
    }
  }

  open(panel) {
    this.tab = panel;
    for (const tab of this.tabs) {
      const chosen = tab.dataset.panel === panel;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      byId(`panel-${tab.dataset.panel}`).hidden = !chosen;
    }
    if (this.turn && this.shown) this.panels[panel].call(this);
  }

  #drawStats = () => {
    const { warnings } = this.turn ?? {};
    const entries = statsOf(this.turn ?? {});
    this.stats.replaceChildren(...entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    byId("turn-warnings").replaceChildren(
      warnings
        ? h("div", { class: "warnings" }, h("p", { class: "label" }, "Adapted"), h("p", {}, plain(warnings)))
        : "",
    );
  };

  #events() {
    this.#drawStats();
    const kept = Boolean(this.turn.log);
    this.timeline.node.hidden = !kept;
    byId("stored-steps").replaceChildren(...(kept ? [] : storedSteps(this.turn)));
    this.timeline.update();
  }

  async #request() {
    const { turn } = this;
    const panel = byId("panel-request");
    panel.replaceChildren(h("p", { class: "note" }, "Translating…"));
    try {
      // What was stored is what was sent; before that, and for what is not stored, the request is translated anew.
      const id = turn.live.ended && turn.live.response.store ? turn.live.response.id : null;
      const translation = id
        ? await getJson(`antiphon/responses/${id}/translation`)
        : await send("POST", "antiphon/translation", turn.request);
      if (turn === this.turn) panel.replaceChildren(...translationView(translation, turn.request));
    } catch (error) {
      if (turn === this.turn) panel.replaceChildren(h("p", { class: "failure" }, plain(error.message)));
    }
  }

  #raw() {
    const { response } = this.turn.live;
    byId("panel-raw").replaceChildren(
      ...(response
        ? [
            h(
              "div",
              { class: "toolbar" },
              h("h3", {}, "Response"),
              copyButton(() => JSON.stringify(response, null, 2), "Response"),
            ),
            json(response, "The response as JSON"),
          ]
        : [h("p", { class: "note" }, this.turn.preview ? "Not sent yet." : "No response yet.")]),
    );
  }

  #code() {
    const choose = (name) => {
      this.language = name;
      this.#code();
      byId("panel-code").querySelector(":checked").focus();
    };
    const name = this.language ?? "curl";
    const text = LANGUAGES[name](this.turn.request);
    const block = h(
      "pre",
      { class: "json", tabindex: 0, role: "region", "aria-label": `The request in ${name}` },
      text,
    );
    colour(block, text, { curl: "bash" }[name] ?? name.toLowerCase());
    const radio = (each) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name: "language", checked: each === name, on: { change: () => choose(each) } }),
        each,
      );
    byId("panel-code").replaceChildren(
      h(
        "div",
        { class: "toolbar" },
        h(
          "fieldset",
          { class: "segments" },
          h("legend", { class: "visually-hidden" }, "Language"),
          Object.keys(LANGUAGES).map(radio),
        ),
        copyButton(text, name),
      ),
      block,
    );
  }
}

// Of a turn whose events are not kept: where its time went, and where to find the rest.
function storedSteps({ measures, live, preview }) {
  if (preview) return [h("p", { class: "note" }, "Not sent yet.")];
  const { id, status } = live.response ?? {};
  return [
    stepsView(measures, status),
    h(
      "p",
      { class: "note" },
      "Events are kept only while the page is open. ",
      id ? h("a", { href: `#/responses/${id}` }, "Open this response in the log") : null,
    ),
  ].filter(Boolean);
}
