// What the server does now: backends, running responses, containers and vector stores.

import { getJson } from "./lib/api.js";
import { cancelResponse } from "./lib/cancel.js";
import { askForKey } from "./lib/dialog.js";
import { button, byId, h } from "./lib/dom.js";
import { bytes, card, dataTable, tiles } from "./lib/tables.js";
import { count, plain, seconds, shortId, when } from "./lib/text.js";
import { Watch } from "./lib/watch.js";

const EVERY = 2000; // ms between two looks
const STATES = { up: "ok", down: "failed", paused: "busy" };

export class Now {
  constructor() {
    this.watch = new Watch(() => this.#refresh(), EVERY);
  }

  show() {
    this.watch.start();
  }

  hide() {
    this.watch.stop();
  }

  reset() {
    this.seen = "";
    byId("now-body").replaceChildren();
  }

  async #refresh() {
    const place = byId("now-body");
    try {
      const now = await getJson("antiphon/now");
      const text = JSON.stringify(now);
      if (text === this.seen && !now.running.length) return; // else their age changes
      this.seen = text;
      const focused = /** @type {any} */ (document.activeElement)?.dataset?.cancel;
      const scrolled = [...place.querySelectorAll(".table")].map((table) => [
        table.getAttribute("aria-label"),
        table.scrollLeft,
      ]);
      const region = document.activeElement?.closest?.("#now-body .table")?.getAttribute("aria-label");
      place.replaceChildren(...this.#page(now));
      for (const [label, left] of scrolled) place.querySelector(`[aria-label="${label}"].table`)?.scrollTo({ left });
      if (focused) place.querySelector(`[data-cancel="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
      else if (region) place.querySelector(`[aria-label="${region}"].table`)?.focus({ preventScroll: true });
    } catch (error) {
      this.seen = "";
      askForKey(error);
      place.replaceChildren(h("p", { class: "failure", role: "alert" }, plain(error.message)));
    }
  }

  #page(now) {
    const servers = now.backends.flatMap(({ replicas }) => replicas);
    const admin = servers.some(({ in_flight }) => in_flight !== undefined);
    const sum = (entries, field) => entries.reduce((total, entry) => total + entry[field], 0);
    const up = servers.filter(({ state }) => state === "up").length;
    return [
      now.complete
        ? null
        : h(
            "p",
            { class: "warnings" },
            "A store is unavailable, so other server processes, containers or vector stores can be missing here.",
          ),
      tiles(
        [
          [
            "Running",
            count(now.running.length),
            now.running.filter(({ delivery }) => delivery === "background").length
              ? `${count(now.running.filter(({ delivery }) => delivery === "background").length)} in the background`
              : null,
          ],
          admin
            ? ["In flight", count(sum(servers, "in_flight")), `${count(sum(now.backends, "queued"))} waiting`]
            : null,
          ["Servers up", `${count(up)} of ${count(servers.length)}`, null],
          ["Containers", count(now.containers.length), bytes(sum(now.containers, "bytes"))],
          ["Vector stores", count(now.vector_stores.length), bytes(sum(now.vector_stores, "bytes"))],
        ].filter(Boolean),
      ),
      card("Running responses", this.#running(now.running)),
      card("Backends", backends(now.backends, admin)),
      card(
        "Containers",
        dataTable(
          "Containers",
          [["Container"], ["Key"], ["State"], ["Last used"], ["Files", true], ["Size", true], ["Memory", true]],
          now.containers.map((each) => [
            code(each.id),
            keys(each),
            chip(each.running ? "running" : "idle", each.running ? "working" : ""),
            when(each.last_active_at),
            count(each.files),
            bytes(each.bytes),
            each.memory_limit,
          ]),
          { empty: "No containers." },
        ),
      ),
      card(
        "Vector stores",
        dataTable(
          "Vector stores",
          [["Vector store"], ["Key"], ["State"], ["Last used"], ["Files", true], ["Size", true]],
          now.vector_stores.map((each) => [
            each.own ? h("a", { href: `#/files/${encodeURIComponent(each.id)}` }, code(each.id)) : code(each.id),
            keys(each),
            indexing(each),
            when(each.last_active_at),
            count(each.files),
            bytes(each.bytes),
          ]),
          { empty: "No vector stores." },
        ),
      ),
    ].filter(Boolean);
  }

  #running(entries) {
    return dataTable(
      "Running responses",
      [
        ["Response"],
        ["Key"],
        ["Model"],
        ["Backend"],
        ["Delivery"],
        ["Running for", true],
        ["First token", true],
        ["", true],
      ],
      entries.map((each) => {
        const id = each.id ? code(each.id) : h("span", { class: "note" }, "passed through");
        return [
          each.own && each.delivery === "background"
            ? h("a", { href: `#/responses/${encodeURIComponent(each.id)}` }, id)
            : id,
          plain(each.key),
          h("code", {}, plain(each.model)),
          plain(each.backend ?? "–"),
          each.delivery,
          seconds(Math.max(0, Date.now() - each.began * 1000)),
          each.first_token_seconds === null ? "–" : seconds(each.first_token_seconds * 1000),
          each.own && each.delivery === "background"
            ? button("Cancel", () => this.#cancel(each.id), {
                class: "quiet danger",
                "data-cancel": each.id,
                "aria-label": `Cancel ${each.id}`,
              })
            : null,
        ];
      }),
      { empty: "No responses are running." },
    );
  }

  async #cancel(id) {
    await cancelResponse(id);
    this.watch.again();
  }
}

const code = (id) => h("code", { title: id }, shortId(id));
const chip = (text, kind) => h("span", { class: `chip ${kind}` }, text);
const keys = (each) => plain(each.keys.join(", ") || (each.own ? "your key" : "–"));

function indexing(each) {
  if (each.in_progress) return chip(`indexing ${count(each.in_progress)}`, "working");
  return each.failed ? chip(`${count(each.failed)} failed`, "failed") : chip("ready", "ready");
}

function backends(entries, admin) {
  const columns = [
    ["Backend"],
    ["Server"],
    ["State"],
    ...(admin
      ? [
          ["In flight", true],
          ["Limit", true],
          ["Waiting", true],
        ]
      : []),
  ];
  return dataTable(
    "Backends",
    columns,
    entries.flatMap((backend) =>
      backend.replicas.map((replica, index) => [
        plain(backend.name),
        h("code", {}, plain(replica.url ?? (admin ? "built in" : `server ${index + 1}`))),
        chip(replica.state, STATES[replica.state]),
        ...(admin
          ? [
              count(replica.in_flight),
              backend.max_concurrency === null ? "–" : count(backend.max_concurrency),
              index ? "" : count(backend.queued),
            ]
          : []),
      ]),
    ),
    { empty: "No backends." },
  );
}
