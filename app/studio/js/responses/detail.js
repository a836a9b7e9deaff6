// One response: question and answer, figures, where its time went, its thread, both requests, and its JSON.

import { getJson, send, stream } from "../lib/api.js";
import { cancelResponse } from "../lib/cancel.js";
import { confirmed } from "../lib/dialog.js";
import { announce, button, copyButton, h, icon, schedule } from "../lib/dom.js";
import { LiveResponse } from "../lib/live.js";
import { requestOf } from "../lib/stored.js";
import { money, tiles } from "../lib/tables.js";
import { count, cut, many, plain, seconds, speed, when } from "../lib/text.js";
import { failureView } from "../parts/failure.js";
import { itemView, itemViews } from "../parts/items.js";
import { stepsView } from "../parts/steps.js";
import { json, translationView } from "../parts/translation.js";
import { stateName, stateView } from "./columns.js";
import { isRunning } from "./log.js";
import { rowsOf } from "./thread.js";

const FOLDED = 360; // px of a question or an answer; what is longer is folded

export class Detail {
  /**
   * @param {object} on
   * @param {(id: string) => string} on.address of another response
   * @param {() => void} on.close
   * @param {(id: string) => void} on.deleted
   * @param {(step: number) => string | null} on.neighbour the id of the next (1) or previous (-1) response of the list
   */
  constructor(on) {
    this.on = on;
    this.id = null;
    this.node = h("aside", {
      id: "response",
      class: "drawer",
      "aria-label": "Response",
      hidden: true,
      on: { keydown: (event) => this.#key(event) },
    });
  }

  close() {
    this.abort?.abort();
    this.id = null;
    this.node.hidden = true;
    this.node.replaceChildren();
  }

  async open(id) {
    this.abort?.abort();
    const again = this.id === id;
    this.id = id;
    this.node.hidden = false;
    if (!again) this.node.replaceChildren(this.#head(null), h("p", { class: "note pulse" }, "Loading…"));
    try {
      const chain = await getJson(`antiphon/responses/${encodeURIComponent(id)}/chain`);
      if (this.id !== id) return;
      const { response } = chain.data.at(-1);
      this.node.replaceChildren(...this.#page(chain, response));
      this.#fold();
      if (!again) this.#title.focus({ preventScroll: true });
      if (isRunning(response)) this.#follow(response);
    } catch (error) {
      if (this.id !== id) return;
      this.node.replaceChildren(
        this.#head(null),
        h("h3", { id: "response-title", tabindex: -1 }, error.status === 404 ? "Not found" : "Not available"),
        failureView(error),
      );
      this.#title.focus({ preventScroll: true });
    }
  }

  get #title() {
    return this.node.querySelector("#response-title");
  }

  #key(event) {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    event.preventDefault();
    this.on.close();
  }

  #head(response) {
    const step = (by, name, label) => {
      const id = this.on.neighbour(by);
      return id
        ? h(
            "a",
            { class: "quiet only", "aria-label": label, title: label, href: this.on.address(id) },
            h("span", { class: `icon ${by < 0 ? "up" : ""}`, "data-icon": name, "aria-hidden": "true" }),
          )
        : null;
    };
    return h(
      "div",
      { class: "drawer-head" },
      response
        ? [
            stateView(response.status),
            h("span", { class: "note" }, when(response.created_at)),
            h("code", { class: "note", title: response.id }, cut(response.id, 17)),
            copyButton(response.id, "Id", ""),
          ]
        : null,
      h("span", { class: "spring" }),
      step(-1, "chevron-down", "Previous response in the list"),
      step(1, "chevron-down", "Next response in the list"),
      this.#widen(),
      button(icon("x"), () => this.on.close(), { class: "quiet only", "aria-label": "Close the response" }),
    );
  }

  #widen() {
    const made = button(
      icon("panel-left"),
      () => made.setAttribute("aria-pressed", String(this.node.classList.toggle("wide"))),
      {
        class: "quiet only wide-only",
        "aria-label": "Full width",
        title: "Full width",
        "aria-pressed": this.node.classList.contains("wide"),
      },
    );
    return made;
  }

  #page({ data, forks }, response) {
    const { measures, input } = data.at(-1);
    this.live = h("div", { class: "answer" }, itemViews(response.output));
    const sections = [
      this.#head(response),
      h(
        "h3",
        { id: "response-title", tabindex: -1, class: "drawer-title", dir: "auto" },
        plain(cut(previewOf(input) || "(no text)", 160)),
      ),
      this.#actions(response),
      response.error ? failureView({ ...response.error, message: response.error.message }) : null,
      h(
        "section",
        { class: "exchange", "aria-label": "Question" },
        h("h4", {}, "Question"),
        h("div", { class: "foldable-text" }, h("div", { class: "question" }, itemViews(input))),
      ),
      response.output.length || isRunning(response)
        ? h(
            "section",
            { class: "exchange", "aria-label": "Answer" },
            h("h4", {}, "Answer"),
            h("div", { class: "foldable-text" }, this.live),
          )
        : null,
      figures(response, measures),
      timeline(measures, response.status),
      facts(response, measures ?? {}),
      fold("Client request and backend request", false, async () =>
        translationView(await getJson(`antiphon/responses/${response.id}/translation`), asSent(requestOf(data.at(-1)))),
      ),
      data.length > 1 || forks.length
        ? fold(
            `Thread (${many(data.length, "turn")}${forks.length ? `, ${many(forks.length, "other branch", "other branches")}` : ""})`,
            true,
            () => [this.#thread(data, forks, response.id)],
          )
        : null,
      fold("JSON", false, () => [
        h(
          "div",
          { class: "toolbar" },
          copyButton(() => JSON.stringify(response, null, 2), "Response"),
        ),
        json(response, "The response as JSON"),
      ]),
    ];
    return sections.filter(Boolean);
  }

  #actions(response) {
    const runs = isRunning(response);
    return h(
      "div",
      { class: "buttons" },
      [
        !runs && response.status !== "failed"
          ? h(
              "a",
              { class: "button primary", href: `#/talk/${response.id}` },
              icon("message-square"),
              "Continue in Talk",
            )
          : null,
        runs
          ? null
          : h("a", { class: "button", href: `#/compare/${response.id}` }, icon("columns-2"), "Run with another model"),
        runs && response.background ? button("Cancel", () => cancelResponse(response.id)) : null,
        button([icon("trash-2"), "Delete"], () => this.#delete(response.id), { class: "danger" }),
      ].filter(Boolean),
    );
  }

  // Fold long texts, with a button to show all.
  #fold() {
    for (const place of this.node.querySelectorAll(".foldable-text")) {
      if (place.scrollHeight <= FOLDED * 1.3) continue;
      place.classList.add("folded");
      const more = button(
        "Show all",
        () => {
          place.classList.remove("folded");
          more.remove();
        },
        { class: "quiet" },
      );
      place.after(more);
    }
  }

  // A background response that runs: its events so far, and those to come.
  async #follow(response) {
    const abort = (this.abort = new AbortController());
    const live = new LiveResponse();
    const views = [];
    const paint = () => {
      live.items.forEach((entry, index) => {
        if (!entry?.changed) return;
        views[index] ??= itemView(entry.item);
        if (!views[index].node.isConnected) this.live.append(views[index].node);
        views[index].draw(entry);
        entry.changed = false;
      });
    };
    this.live.replaceChildren();
    try {
      const { batches } = await stream(`responses/${response.id}?stream=true`, { signal: abort.signal });
      for await (const batch of batches) {
        for (const [, event] of batch) live.apply(event);
        schedule(paint);
      }
      if (this.id === response.id) {
        announce(`The response is ${stateName(live.response?.status ?? "completed").toLowerCase()}.`);
        await this.open(response.id);
      }
    } catch (error) {
      if (error.name !== "AbortError" && this.id === response.id)
        this.live.append(h("p", { class: "note" }, plain(error.message)));
    }
  }

  async #delete(id) {
    if (
      !(await confirmed({
        title: "Delete this response?",
        text: "Responses that continue from it can no longer be continued.",
        verb: "Delete",
      }))
    )
      return;
    try {
      await send("DELETE", `responses/${id}`);
      announce("Deleted.");
      this.on.deleted(id);
    } catch (error) {
      announce(error.message);
    }
  }

  #thread(data, forks, id) {
    const path = new Set(data.map(({ response }) => response.id));
    const turns = [
      ...data.map(({ response, input }) => ({ response, text: previewOf(input) })),
      ...forks.map((fork) => ({ response: fork, text: fork.preview })),
    ];
    return h(
      "ol",
      { class: "tree" },
      rowsOf(turns).map(({ response, text, depth, fork }) => {
        const row = h(
          "li",
          { class: path.has(response.id) ? "on-path" : null },
          h(
            "a",
            { href: this.on.address(response.id), "aria-current": response.id === id ? "true" : null },
            fork ? icon("git-branch") : null,
            h("span", { class: "tree-text", dir: "auto" }, plain(cut(text || "(no text)", 80))),
            h(
              "span",
              { class: "note" },
              when(response.created_at),
              response.status === "completed" ? "" : ` · ${stateName(response.status).toLowerCase()}`,
            ),
          ),
        );
        row.style.setProperty("--depth", Math.min(depth, 8));
        return row;
      }),
    );
  }
}

function fold(title, open, fill) {
  const body = h("div", { class: "fold-body" });
  const section = h("details", { class: "fold" }, h("summary", {}, h("h4", {}, title)), body);
  const filled = async () => {
    section.removeEventListener("toggle", filled);
    body.replaceChildren(h("p", { class: "note" }, "Loading…"));
    try {
      body.replaceChildren(...(await fill()));
    } catch (error) {
      body.replaceChildren(h("p", { class: "failure" }, plain(error.message)));
    }
  };
  section.addEventListener("toggle", filled);
  section.open = open;
  return section;
}

// Time, tokens, cost and backend.
function figures(response, measures) {
  const { usage } = response;
  const { first_token_seconds: first, seconds: all, cost, backend } = measures ?? {};
  const rate = speed(usage?.output_tokens, measures ?? {});
  const cached = usage?.input_tokens_details?.cached_tokens;
  const reasoning = usage?.output_tokens_details?.reasoning_tokens;
  const parts = usage
    ? [
        `${count(usage.input_tokens)} in`,
        `${count(usage.output_tokens)} out`,
        cached ? `${count(cached)} cached` : "",
        reasoning ? `${count(reasoning)} reasoning` : "",
      ]
    : [];
  return h(
    "div",
    { class: "drawer-tiles" },
    tiles([
      [
        "Time",
        all ? seconds(all * 1000) : "–",
        first ? `first token ${seconds(first * 1000)}${rate ? `, ${rate} tokens/s` : ""}` : null,
      ],
      ["Tokens", usage ? count(usage.total_tokens) : "–", parts.filter(Boolean).join(", ") || null],
      ["Cost", money(cost), costNote(cost, response.status)],
      ["Backend", plain(backend ?? "–"), plain(response.model)],
    ]),
  );
}

function costNote(cost, status) {
  if (typeof cost === "number") return null;
  return status === "completed" ? "no price is set" : "none recorded";
}

function facts(response, { key, delivery, queued_seconds: queued }) {
  const entries = [
    ["Delivery", delivery ?? (response.background ? "background" : "")],
    ["Key", plain(key ?? "")],
    ["Queue", queued ? seconds(queued * 1000) : ""],
    [
      "Conversation",
      response.conversation
        ? h(
            "a",
            { href: `#/responses?conversation=${encodeURIComponent(response.conversation.id)}` },
            h("code", {}, response.conversation.id),
          )
        : "",
    ],
    ...Object.entries(response.metadata ?? {}).map(([name, value]) => [
      plain(name),
      h("a", { href: `#/responses?${new URLSearchParams({ [`metadata[${name}]`]: value })}` }, plain(cut(value, 200))),
    ]),
  ].filter(([, value]) => value);
  return entries.length
    ? h(
        "dl",
        { class: "fields" },
        entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      )
    : null;
}

// Every step in time, gaps included.
function timeline(measures, status) {
  const view = stepsView(measures, status);
  return view ? fold("Timeline", true, () => [view]) : null;
}

// A stored request without the ids and states that the server has given to its messages and outputs.
function asSent({ input, ...request }) {
  /** @type {(item: any) => boolean} */
  const own = ({ role, type }) => ["user", "system", "developer"].includes(role) || type?.endsWith("_output");
  return { ...request, input: input.map(({ id, status, ...item }) => (own(item) ? item : { ...item, id, status })) };
}

function previewOf(input) {
  for (const item of input.toReversed()) {
    const part = typeof item.content === "string" ? { text: item.content } : item.content?.find((each) => each.text);
    if (part && item.role === "user") return part.text;
  }
  return input[0]?.output && typeof input[0].output === "string" ? `Output: ${input[0].output}` : "";
}
