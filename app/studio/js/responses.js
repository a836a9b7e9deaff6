// Look back: the recent responses of one's key, and all there is of one of them.

import { getJson, send, stream } from "./lib/api.js";
import { askForKey, confirmed } from "./lib/dialog.js";
import { announce, button, byId, copyButton, h, icon, schedule } from "./lib/dom.js";
import { LiveResponse } from "./lib/live.js";
import { requestOf } from "./lib/stored.js";
import { money } from "./lib/tables.js";
import { count, cut, many, plain, seconds, when } from "./lib/text.js";
import { Watch } from "./lib/watch.js";
import { itemView, itemViews } from "./parts/items.js";
import { json, translationView } from "./parts/translation.js";
import { failureView } from "./talk.js";

const PAGE = 30;
const PAUSE = 250; // ms after the last key before what was typed is looked for
const ID = /^resp_\S+$/;
const NOTHING = "Nothing is stored for this key yet. What any client sends to this server appears here.";
const EVERY = 3000; // ms between two looks at the list
const RUNNING = new Set(["queued", "in_progress"]);

export class Responses {
  constructor({ onopen }) {
    this.watch = new Watch(() => this.#refresh(), EVERY);
    this.onopen = onopen; // continue a chain in Talk
    this.entries = [];
    this.seen = "";
    this.id = null;
    this.list = byId("recent");
    this.query = filters();
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = byId("search-text").value.trim();
      if (ID.test(text)) location.hash = `#/responses/${encodeURIComponent(text)}`;
      else this.#filter();
    });
    byId("search").addEventListener("input", ({ target }) => {
      if (target.tagName === "SELECT" || ID.test(byId("search-text").value.trim())) return;
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#filter(), PAUSE);
    });
    byId("search").addEventListener("change", () => this.#filter());
    byId("search").addEventListener("reset", () => setTimeout(() => this.#filter()));
    byId("more").addEventListener("click", () => this.#more());
  }

  // The view is shown, maybe with a response.
  async show(id) {
    this.refused = id === "refused";
    byId("search").hidden = this.refused;
    for (const [kind, chosen] of [
      ["stored", !this.refused],
      ["refused", this.refused],
    ]) {
      if (chosen) byId(`kind-${kind}`).setAttribute("aria-current", "page");
      else byId(`kind-${kind}`).removeAttribute("aria-current");
    }
    for (const each of ["refused", "recent"]) byId(each).hidden = (each === "refused") !== this.refused;
    if (this.refused) for (const each of ["recent-empty", "more"]) byId(each).hidden = true;
    else byId("refused-empty").hidden = true;
    if (this.refused) this.#close();
    this.seen = "";
    this.watch.start();
    if (this.refused) return;
    if (id && id !== this.id) await this.#open(id);
    else if (!id) this.#close();
  }

  hide() {
    this.watch.stop();
    this.abort?.abort();
  }

  // Forget what another key has seen.
  reset() {
    this.entries = [];
    this.seen = "";
    this.list.replaceChildren();
    byId("refused").replaceChildren();
    this.#close();
  }

  #filter() {
    clearTimeout(this.typing);
    const query = filters();
    if (query === this.query) return;
    this.query = query;
    const set = ["filter-status", "filter-time", "filter-model", "filter-tool", "filter-conversation"].filter((id) =>
      byId(id).value.trim(),
    ).length;
    byId("filters-count").hidden = !set;
    byId("filters-count").textContent = count(set);
    this.entries = [];
    this.seen = "";
    this.watch.again();
  }

  #close() {
    this.id = null;
    this.abort?.abort();
    byId("responses").dataset.open = "";
    byId("response").replaceChildren(
      h(
        "p",
        { class: "note" },
        this.refused
          ? "What was refused in the last 24 hours, with what the answer named. The server keeps nothing of the content of these requests."
          : "Choose a response to see its chain, its items, what was sent to the backend, and its JSON.",
      ),
    );
    this.#mark();
  }

  async #refresh() {
    const { query, refused } = this;
    try {
      const page = await getJson(refused ? "antiphon/refusals?limit=100" : `antiphon/responses?limit=${PAGE}${query}`);
      if (refused !== this.refused || query !== this.query) return;
      const text = JSON.stringify(page);
      if (text === this.seen) return;
      this.seen = text;
      byId("recent-problem").textContent = "";
      if (refused) {
        byId("refused-empty").hidden = page.data.length > 0;
        byId("refused").replaceChildren(...page.data.map(refusalView));
        return;
      }
      const known = new Set(page.data.map((entry) => entry.id));
      // What is older than the page stays, where it joins it; else there is a gap, and it is read again.
      const last = this.entries.findIndex((entry) => entry.id === page.data.at(-1)?.id);
      const rest = last < 0 ? [] : this.entries.slice(last + 1).filter((entry) => !known.has(entry.id));
      this.entries = [...page.data, ...rest];
      if (!rest.length) this.#cut(page);
      this.#draw();
    } catch (error) {
      askForKey(error);
      byId("recent-problem").textContent = error.message;
    }
  }

  async #more() {
    const page = await getJson(`antiphon/responses?limit=${PAGE}&after=${this.last}${this.query}`);
    this.entries.push(...page.data);
    this.#cut(page);
    this.#draw();
    announce(`${many(page.data.length, "more response")}.`);
  }

  // Note where the list goes on.
  #cut(page) {
    this.last = page.last_id;
    byId("more").hidden = !page.has_more;
    byId("more").textContent = page.data.length ? "Show more" : "Search further back";
  }

  #draw() {
    byId("recent-empty").hidden = this.entries.length > 0;
    byId("recent-empty").textContent = this.query
      ? byId("more").hidden
        ? "No response has all of this."
        : "None of the last 1,000 responses has all of this."
      : NOTHING;
    const focused = document.activeElement?.closest("#recent a")?.getAttribute("href");
    this.list.replaceChildren(
      ...this.entries.map((entry) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: `#/responses/${entry.id}`, "data-id": entry.id },
            h("span", { class: "recent-text" }, plain(cut(entry.preview || "(no text)", 90))),
            h(
              "span",
              { class: "recent-meta" },
              h("span", {}, when(entry.created_at)),
              h("span", {}, plain(cut(entry.model, 30))),
              entry.usage ? h("span", {}, many(entry.usage.total_tokens, "token")) : null,
              entry.seconds
                ? h(
                    "span",
                    {
                      title:
                        entry.first_token_seconds === null
                          ? null
                          : `First token after ${seconds(entry.first_token_seconds * 1000)}`,
                    },
                    seconds(entry.seconds * 1000),
                  )
                : null,
              entry.cost ? h("span", {}, `cost ${money(entry.cost)}`) : null,
              (entry.tools ?? []).slice(0, 3).map((tool) => h("span", { class: "chip" }, plain(cut(tool, 24)))),
              entry.background ? h("span", {}, "background") : null,
              entry.status === "completed"
                ? null
                : h(
                    "span",
                    { class: `chip ${RUNNING.has(entry.status) ? "working" : entry.status}` },
                    entry.status.replaceAll("_", " "),
                  ),
            ),
          ),
        ),
      ),
    );
    if (focused) this.list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    this.#mark();
  }

  #mark() {
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.id === this.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  async #open(id) {
    this.abort?.abort();
    this.id = id;
    byId("responses").dataset.open = "true";
    this.#mark();
    const place = byId("response");
    try {
      const chain = await getJson(`antiphon/responses/${encodeURIComponent(id)}/chain`);
      if (this.id !== id) return;
      const { response } = chain.data.at(-1);
      place.replaceChildren(...this.#page(chain, response));
      byId("response-title").focus({ preventScroll: true });
      if (RUNNING.has(response.status)) this.#follow(response);
    } catch (error) {
      if (this.id !== id) return;
      place.replaceChildren(h("h2", { id: "response-title", tabindex: -1 }, "Not found"), failureView(error));
    }
  }

  #page(chain, response) {
    const { data, forks } = chain;
    const actions = [
      response.status !== "failed" && !RUNNING.has(response.status)
        ? button("Continue in Talk", () => this.onopen(data), { class: "primary" })
        : null,
      RUNNING.has(response.status)
        ? null
        : h(
            "a",
            { class: "quiet", href: `#/compare/${response.id}` },
            icon("columns-2"),
            "Run again with another model",
          ),
      RUNNING.has(response.status) && response.background ? button("Cancel", () => this.#cancel(response.id)) : null,
      copyButton(response.id, "Id", "Copy id"),
      button("Delete", () => this.#delete(response.id), { class: "danger" }),
    ];
    this.live = h("div", { class: "answer" }, itemViews(response.output));
    return [
      h("p", {}, h("a", { href: "#/responses", class: "back" }, icon("arrow-left"), " All responses")),
      h("h2", { id: "response-title", tabindex: -1 }, h("code", {}, response.id)),
      h("div", { class: "buttons" }, actions),
      h(
        "dl",
        { class: "fields" },
        summary(response, data.at(-1).measures).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
      response.error ? failureView({ ...response.error, message: response.error.message }) : null,
      timeline(response, data.at(-1).measures),
      fold("Items", true, () => [h("div", { class: "question" }, itemViews(data.at(-1).input)), this.live]),
      fold(
        `Chain (${many(data.length, "turn")}${forks.length ? `, ${count(forks.length)} beside` : ""})`,
        data.length > 1 || forks.length > 0,
        () => [tree(data, forks, response.id)],
      ),
      fold("Request to the backend", false, async () =>
        translationView(await getJson(`antiphon/responses/${response.id}/translation`), requestOf(data.at(-1))),
      ),
      fold("JSON", false, () => [
        h(
          "div",
          { class: "toolbar" },
          copyButton(() => JSON.stringify(response, null, 2), "Response"),
        ),
        json(response, "The response as JSON"),
      ]),
    ].filter(Boolean);
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
        announce(`The response is ${live.response?.status ?? "over"}.`);
        await this.#open(response.id);
      }
    } catch (error) {
      if (error.name !== "AbortError" && this.id === response.id)
        this.live.append(h("p", { class: "note" }, plain(error.message)));
    }
  }

  async #cancel(id) {
    try {
      await send("POST", `responses/${id}/cancel`, {});
      announce("Cancelled.");
    } catch (error) {
      announce(error.message);
    }
  }

  async #delete(id) {
    if (
      !(await confirmed({
        title: "Delete this response?",
        text: "What continued from it cannot be continued any more.",
        verb: "Delete",
      }))
    )
      return;
    try {
      await send("DELETE", `responses/${id}`);
      announce("Deleted.");
      this.entries = this.entries.filter((entry) => entry.id !== id);
      this.seen = "";
      this.#draw();
      location.hash = "#/responses";
    } catch (error) {
      announce(error.message);
    }
  }
}

function fold(title, open, fill) {
  const body = h("div", { class: "fold-body" });
  const section = h("details", { class: "fold" }, h("summary", {}, h("h3", {}, title)), body);
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

function summary(response, measures) {
  const { usage } = response;
  const { cost, backend } = measures ?? {};
  return [
    ["Status", response.status.replaceAll("_", " ")],
    ["Model", plain(response.model)],
    ["Made", when(response.created_at)],
    ["Background", response.background ? "yes" : "no"],
    ["Conversation", response.conversation?.id ?? ""],
    ["Backend", backend ? plain(backend) : ""],
    [
      "Time",
      measures
        ? [
            seconds(measures.seconds * 1000),
            measures.first_token_seconds === null
              ? ""
              : `first token after ${seconds(measures.first_token_seconds * 1000)}`,
          ]
            .filter(Boolean)
            .join(", ")
        : "",
    ],
    [
      "Tokens",
      usage ? `${count(usage.total_tokens)}: ${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out` : "",
    ],
    ["Cost", cost === null || cost === undefined ? "" : money(cost)],
  ].filter(([, value]) => value);
}

// A refused request.
function refusalView({ at, key, endpoint, status, code, param, request_id }) {
  return h(
    "li",
    { class: "refusal-entry" },
    h(
      "span",
      { class: "recent-text" },
      h("span", { class: `chip ${status === 429 ? "busy" : "failed"}` }, count(status)),
      " ",
      plain(code ?? "refused"),
      param ? [" (", h("code", {}, plain(param)), ")"] : "",
    ),
    h(
      "span",
      { class: "recent-meta" },
      h("span", {}, when(at)),
      h("span", {}, plain(key)),
      h("span", {}, plain(endpoint)),
      h("code", {}, plain(request_id)),
    ),
  );
}

// The rounds and calls of a response in time.
function timeline(response, measures) {
  if (!measures || measures.seconds <= 0) return null;
  const whole = measures.seconds;
  const steps = measures.steps.length
    ? measures.steps
    : [{ kind: "model", start: 0, end: whole, status: response.status }];
  const row = ({ kind, start, end, ...step }) => {
    const round = measures.steps.length ? `Model, round ${count((step.round ?? 0) + 1)}` : "Model";
    const name = { tool: step.function, tools: "Opening tools" }[kind] ?? round;
    const text = `${seconds(start * 1000)} to ${seconds(end * 1000)}`;
    const tokens = step.output_tokens ? `, ${many(step.output_tokens, "token")}` : "";
    const waits =
      !measures.steps.length && measures.first_token_seconds
        ? part("wait", 0, measures.first_token_seconds, whole)
        : null;
    return h(
      "li",
      {},
      h("span", { class: "gantt-name", title: name }, plain(name)),
      h(
        "span",
        { class: "gantt-track", "aria-hidden": "true" },
        part(step.status === "failed" ? "failed" : kind, start, end, whole),
        waits,
      ),
      h(
        "span",
        { class: "gantt-time" },
        h("span", { class: "visually-hidden" }, `${text}: `),
        `${seconds((end - start) * 1000)}${tokens}`,
      ),
    );
  };
  return fold("Timeline", true, () => [
    h("ol", { class: "gantt" }, steps.map(row)),
    h(
      "p",
      { class: "note" },
      `${seconds(whole * 1000)} in all${measures.first_token_seconds ? `, the first token after ${seconds(measures.first_token_seconds * 1000)}${measures.steps.length ? "" : ", in grey"}` : ""}.`,
    ),
  ]);
}

function part(kind, start, end, whole) {
  const made = h("span", { class: `gantt-bar ${kind}` });
  made.style.left = `${Math.min(99.5, (start / whole) * 100).toFixed(2)}%`;
  made.style.width = `${Math.min(100, (Math.max(0, end - start) / whole) * 100).toFixed(2)}%`;
  return made;
}

// What is filtered by, as it goes into an address.
function filters() {
  const text = byId("search-text").value.trim();
  const query = {
    status: byId("filter-status").value,
    model: byId("filter-model").value.trim(),
    tool: byId("filter-tool").value.trim(),
    conversation: byId("filter-conversation").value.trim(),
    text: ID.test(text) ? "" : text,
  };
  const since = Number(byId("filter-time").value);
  if (since) query.created_after = Math.floor(Date.now() / 60_000) * 60 - since;
  const parts = Object.entries(query).filter(([, value]) => value);
  return parts.map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
}

// A chain as a tree: the turns up to this response, and what was forked from any of them.
function tree(data, forks, id) {
  const nodes = new Map();
  const add = (response, text) => nodes.set(response.id, { response, text, children: [] });
  for (const { response, input } of data) add(response, previewOf(input));
  for (const fork of forks) add(fork, fork.preview);
  const roots = [];
  for (const node of nodes.values()) (nodes.get(node.response.previous_response_id)?.children ?? roots).push(node);
  const path = new Set(data.map(({ response }) => response.id));
  const branch = (siblings) =>
    h(
      "ul",
      {},
      siblings
        .map((node) => node)
        .flatMap((node) => {
          const line = [node];
          // A line of turns without forks is one level, however long it is.
          while (line.at(-1).children.length === 1) line.push(line.at(-1).children[0]);
          return [
            ...line.map((each) => h("li", { class: path.has(each.response.id) ? "on-path" : "" }, label(each, id))),
            line.at(-1).children.length ? h("li", { class: "forked" }, branch(line.at(-1).children)) : null,
          ].filter(Boolean);
        }),
    );
  const made = branch(roots);
  made.className = "tree";
  return made;
}

function label({ response, text }, id) {
  return h(
    "a",
    { href: `#/responses/${response.id}`, ...(response.id === id ? { "aria-current": "true" } : {}) },
    h("span", { class: "recent-text" }, plain(cut(text || "(no text)", 80))),
    h(
      "span",
      { class: "recent-meta" },
      when(response.created_at),
      response.status === "completed" ? "" : ` · ${response.status}`,
    ),
  );
}

function previewOf(input) {
  for (const item of input) {
    const part = typeof item.content === "string" ? { text: item.content } : item.content?.find((each) => each.text);
    if (part && item.role === "user") return part.text;
  }
  return input[0]?.output && typeof input[0].output === "string" ? `Output: ${input[0].output}` : "";
}
