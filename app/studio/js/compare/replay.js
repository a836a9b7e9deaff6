// Stored requests, sent to another model: what is the same, slower or faster, and cheaper.

import { getJson, stream } from "../lib/api.js";
import { askForKey } from "../lib/dialog.js";
import { announce, button, h, icon } from "../lib/dom.js";
import { LiveResponse } from "../lib/live.js";
import { EventLog } from "../lib/log.js";
import { recorded, repeatOf } from "../lib/stored.js";
import { money, tiles } from "../lib/tables.js";
import { count, cut, plain, seconds } from "../lib/text.js";
import { listQuery, readQuery } from "../responses/address.js";
import { change, changeText, difference, resultOf, summary } from "./result.js";

const NUMBERS = [10, 20, 50, 100];
const AT_ONCE = 2; // requests
const REPEATABLE = new Set(["completed", "incomplete", "failed"]);
const WORDS = { same: "same", text: "other text", calls: "other calls", status: "other status" };

export class ReplayView {
  constructor() {
    this.select = h("select", { id: "replay-model" });
    this.number = h(
      "select",
      { id: "replay-number", on: { change: () => this.#load() } },
      NUMBERS.map((each) => h("option", { value: each, selected: each === 20 }, `${each}`)),
    );
    this.store = h("input", { type: "checkbox", checked: true });
    this.start = button([icon("play"), "Run"], () => this.#run(), { class: "primary" });
    this.stop = button([icon("square"), "Stop"], () => this.abort?.abort(), { hidden: true });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.sums = h("div", { "aria-live": "polite" });
    this.rows = h("tbody");
    this.table = h(
      "div",
      { class: "scroll table", tabindex: 0, role: "region", "aria-label": "Stored requests" },
      h(
        "table",
        { class: "replay" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Input", "Model", "Result", "Duration", "Output tokens", "Cost", ""].map((name, index) =>
              h(
                name ? "th" : "td",
                { scope: name ? "col" : null, class: index > 2 && index < 6 ? "number" : null },
                name,
              ),
            ),
          ),
        ),
        this.rows,
      ),
    );
    this.node = h(
      "div",
      { class: "view-body stack replay-view", hidden: true },
      h("h3", {}, "Run stored requests with another model"),
      h(
        "div",
        { class: "toolbar" },
        h("label", { for: "replay-number" }, "Newest"),
        this.number,
        h("label", { for: "replay-model" }, "requests with"),
        this.select,
        h("label", { class: "check note" }, this.store, " Store the new answers (needed to see the cost)"),
        h("span", { class: "spring" }),
        this.stop,
        this.start,
      ),
      h("p", { class: "note" }, "Runs the newest requests that match the log's filters. Hosted tools run again."),
      this.problem,
      this.sums,
      this.table,
    );
    this.entries = [];
  }

  offer(models) {
    const chosen = this.select.value;
    this.select.replaceChildren(...models.map(({ id }) => h("option", { value: id }, plain(id))));
    if (models.some(({ id }) => id === chosen)) this.select.value = chosen;
  }

  show(search) {
    const query = listQuery(readQuery(search));
    if (query === this.query && this.entries.length) return;
    this.query = query;
    this.#load();
  }

  hide() {}

  reset() {
    this.abort?.abort();
    this.query = null;
    this.entries = [];
    this.rows.replaceChildren();
    this.sums.replaceChildren();
  }

  async #load() {
    const asked = (this.asked = {});
    this.sums.replaceChildren();
    try {
      const { data } = await getJson(`antiphon/responses?limit=${this.number.value}${this.query}`);
      if (this.asked !== asked) return;
      this.entries = data.filter(({ status }) => REPEATABLE.has(status));
      this.problem.textContent = this.entries.length ? "" : "No finished responses match these filters.";
      this.start.disabled = !this.entries.length;
      this.rows.replaceChildren(
        ...this.entries.map((entry) => {
          entry.row = h("tr");
          draw(entry, h("span", { class: "note" }, "not run"));
          return entry.row;
        }),
      );
    } catch (error) {
      askForKey(error);
      this.problem.textContent = error.message;
    }
  }

  async #run() {
    const abort = (this.abort = new AbortController());
    const model = this.select.value;
    const store = this.store.checked;
    const waiting = [...this.entries];
    const pairs = [];
    this.#busy(true);
    for (const entry of waiting) draw(entry, h("span", { class: "note" }, "waiting"));
    const worker = async () => {
      while (waiting.length && !abort.signal.aborted) {
        const entry = waiting.shift();
        draw(entry, h("span", { class: "chip working" }, "running"));
        try {
          const pair = await repeat(entry.id, model, store, abort.signal);
          pairs.push(pair);
          draw(entry, null, pair);
          this.#sum(pairs);
        } catch (error) {
          draw(
            entry,
            error.name === "AbortError"
              ? h("span", { class: "note" }, "stopped")
              : h("span", { class: "chip failed", title: error.message }, plain(error.code || "failed")),
          );
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    for (const entry of waiting) draw(entry, h("span", { class: "note" }, "not run"));
    if (this.abort !== abort) return;
    this.#busy(false);
    announce(`${pairs.length} of ${this.entries.length} requests answered.`);
  }

  #busy(busy) {
    this.start.hidden = busy;
    this.stop.hidden = !busy;
    this.select.disabled = this.number.disabled = busy;
  }

  #sum(pairs) {
    const { number, same, seconds: times, cost, output } = summary(pairs);
    this.sums.replaceChildren(
      tiles([
        ["Same", `${count(same)} of ${count(number)}`, `${count(number - same)} different`],
        [
          "Duration",
          changeText(change(...times), "slower", "faster") || "–",
          `${seconds(times[0] * 1000)} before, ${seconds(times[1] * 1000)} now`,
        ],
        [
          "Output tokens",
          changeText(change(...output), "more", "fewer") || "–",
          `${count(output[0])} before, ${count(output[1])} now`,
        ],
        [
          "Cost",
          changeText(change(...cost), "more expensive", "cheaper") || "–",
          `${money(cost[0])} before, ${money(cost[1])} now`,
        ],
      ]),
    );
  }
}

// Send the request of a stored response again: the results before and now, and the ids to compare.
async function repeat(id, model, store, signal) {
  const chain = await getJson(`antiphon/responses/${id}/chain`);
  const { response, measures } = chain.data.at(-1);
  const log = new EventLog();
  const live = new LiveResponse();
  const { batches } = await stream("responses", {
    method: "POST",
    body: { ...repeatOf(chain), model, stream: true, store },
    signal,
  });
  for await (const batch of batches) {
    for (const [raw, event] of batch) {
      log.add(raw, event);
      live.apply(event);
    }
  }
  log.end();
  const known = store ? await recorded(live.response.id) : {};
  const pair = [resultOf(response, measures ?? {}), resultOf(live.response, { ...log.measures(), ...known })];
  return Object.assign(pair, { ids: store ? [response.id, live.response.id] : null });
}

function draw(entry, state, pair) {
  const link = h("a", { href: `#/responses/${entry.id}`, dir: "auto" }, plain(cut(entry.preview || "(no text)", 60)));
  if (!pair) {
    const before = [
      entry.seconds ? seconds(entry.seconds * 1000) : "–",
      entry.usage ? count(entry.usage.output_tokens) : "–",
      money(entry.cost),
    ];
    entry.row.replaceChildren(
      ...[link, h("code", {}, plain(entry.model)), state, ...before, ""].map((content, index) =>
        h("td", { class: index > 2 && index < 6 ? "number" : null }, content),
      ),
    );
    return;
  }
  const [before, after] = pair;
  const kind = difference(before, after);
  const two = (show, field, more, less) => {
    const share = change(before[field], after[field]);
    return [
      after[field] === null ? "–" : show(after[field]),
      " ",
      h(
        "span",
        { class: share > 0.005 ? "note warn" : share < -0.005 ? "note better" : "note" },
        changeText(share, more, less),
      ),
    ];
  };
  const cells = [
    link,
    h("code", {}, plain(after.model)),
    h("span", { class: `chip ${kind === "same" ? "ok" : kind === "status" ? "failed" : "busy"}` }, WORDS[kind]),
    two((value) => seconds(value * 1000), "seconds", "slower", "faster"),
    two(count, "output", "more", "fewer"),
    two(money, "cost", "dearer", "cheaper"),
    pair.ids
      ? h("a", { class: "quiet", href: `#/compare?ids=${pair.ids.join(",")}` }, icon("columns-2"), "Compare")
      : "",
  ];
  entry.row.replaceChildren(
    ...cells.map((content, index) => h("td", { class: index > 2 && index < 6 ? "number" : null }, content)),
  );
}
