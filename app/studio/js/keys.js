// Keys that an admin manages: create, limit, rotate, revoke, with their use.

import { getJson, send } from "./lib/api.js";
import { askForKey, confirmed, openModal } from "./lib/dialog.js";
import { announce, button, byId, copyButton, h } from "./lib/dom.js";
import { plot } from "./lib/plot.js";
import { bar, card, dataTable, money, moneyTicks, short, tiles } from "./lib/tables.js";
import { ago, count, plain, when } from "./lib/text.js";

const DAY = 86400;
const DAYS = 30;
const GRACE = { 0: "at once", 3600: "an hour", 86400: "a day", 604800: "a week" };
const LIMITS = {
  requests_per_minute: "Requests per minute",
  tokens_per_minute: "Tokens per minute",
  max_concurrent: "Concurrent responses",
};
const BUDGETS = {
  tokens_per_day: "Tokens per day",
  tokens_per_month: "Tokens per month",
  money_per_day: "Cost per day",
  money_per_month: "Cost per month",
};

export class Keys {
  constructor() {
    byId("keys-new").addEventListener("click", () => this.#create());
    byId("keys-revoked").addEventListener("change", () => this.show(null));
  }

  async show(id) {
    const moved = this.visible && this.id !== id;
    if (this.id !== id) byId("keys-body").replaceChildren();
    this.visible = true;
    this.id = id;
    const asked = (this.asked = {});
    try {
      const [title, nodes] = id ? await this.#key(id) : await this.#all();
      if (this.asked !== asked) return;
      this.#draw(title, nodes, true);
    } catch (error) {
      if (this.asked !== asked) return;
      askForKey(error);
      this.#draw("Keys", failure(error, id), error.status !== 403);
    }
    if (moved) byId("keys-title").focus({ preventScroll: true });
  }

  hide() {
    this.visible = false;
    this.asked = null;
  }

  reset() {
    this.id = undefined;
    byId("keys-body").replaceChildren();
  }

  #draw(title, nodes, allowed) {
    byId("keys-title").textContent = title;
    byId("keys-new").disabled = !allowed;
    byId("keys-new").hidden = byId("keys-filter").hidden = Boolean(this.id);
    byId("keys-body").replaceChildren(...nodes);
  }

  async #all() {
    const revoked = byId("keys-revoked").checked;
    const [keys, used] = await Promise.all([all(revoked), getJson(`antiphon/usage?${days()}&group=key`)]);
    const usage = new Map(used.data.map((row) => [row.key, row]));
    const columns = [
      ["Name"],
      ["Owner"],
      ["Models"],
      ["Limits"],
      ["Tokens, 30 days", true],
      ["Cost, 30 days", true],
      ["Last used"],
      ["State"],
    ];
    const rows = keys.map((key) => [
      h("a", { href: `#/keys/${encodeURIComponent(key.id)}` }, plain(key.name)),
      plain(key.owner),
      globs(key.models),
      h("span", { class: "wrapping" }, limits(key)),
      short(usage.get(key.name)?.total_tokens ?? 0),
      money(usage.get(key.name)?.cost ?? 0),
      key.last_used_at ? ago(key.last_used_at) : "never",
      state(key),
    ]);
    const empty = revoked ? "No revoked keys." : "No keys yet.";
    const note = "Keys from the settings file are read-only here. Usage is counted by key name.";
    return ["Keys", [dataTable("API keys", columns, rows, { empty }), h("p", { class: "note" }, note)]];
  }

  async #key(id) {
    const key = await getJson(`antiphon/keys/${encodeURIComponent(id)}`);
    const name = encodeURIComponent(key.name.replaceAll("[", "[[]"));
    const [used, budgets, changes] = await Promise.all([
      getJson(`antiphon/usage?${days()}&group=day&key=${name}`),
      getJson("antiphon/budgets"),
      getJson(`antiphon/audit?limit=50&key=${encodeURIComponent(id)}`),
    ]);
    const own = budgets.data.filter((budget) => budget.key === key.name);
    const nodes = [
      h("p", {}, h("a", { href: "#/keys" }, "All keys")),
      key.source === "store" && !key.revoked ? this.#actions(key) : null,
      tiles([
        ["Cost, 30 days", money(used.total.cost)],
        ["Tokens, 30 days", short(used.total.total_tokens)],
        ["Requests, 30 days", count(used.total.requests)],
        ["Last used", key.last_used_at ? when(key.last_used_at) : "never"],
      ]),
      own.length ? card("Budgets", own.map(budget)) : null,
      h("div", { class: "figures" }, figures(used)),
      card("Fields", dataTable("Key fields", [["Field"], ["Value"]], fieldsOf(key))),
      key.source === "store" ? card("Changes", audit(changes.data)) : null,
    ];
    return [plain(key.name), nodes.filter(Boolean)];
  }

  #actions(key) {
    return h(
      "div",
      { class: "toolbar" },
      button("Change…", () => this.#change(key)),
      button("Rotate…", () => this.#rotate(key)),
      button("Revoke…", () => this.#revoke(key), { class: "danger" }),
    );
  }

  async #create() {
    const made = await form({ title: "New key", verb: "Create" }, (body) => send("POST", "antiphon/keys", body));
    if (!made) return;
    announce("Key created.");
    await shown(made);
    location.hash = `#/keys/${encodeURIComponent(made.id)}`;
  }

  async #change(key) {
    const path = `antiphon/keys/${encodeURIComponent(key.id)}`;
    const changed = await form({ title: `Change ${key.name}`, verb: "Save", key }, (body) => send("PATCH", path, body));
    if (!changed) return;
    announce("Key changed.");
    await this.show(this.id);
  }

  async #rotate(key) {
    const path = `antiphon/keys/${encodeURIComponent(key.id)}/rotate`;
    const options = Object.entries(GRACE).map(([value, label]) => h("option", { value }, label));
    const select = h("select", { id: "key-grace" }, options);
    select.value = String(DAY);
    const body = [
      h("p", {}, "The key gets a new secret. Choose how long the current secret keeps working."),
      field("key-grace", "Grace period", select),
    ];
    const rotated = await dialog({ title: `Rotate ${key.name}`, verb: "Rotate", body }, () =>
      send("POST", path, { grace_period: Number(select.value) }),
    );
    if (!rotated) return;
    announce("Key rotated.");
    await shown(rotated);
    await this.show(this.id);
  }

  async #revoke(key) {
    const text =
      "Requests with this key are refused immediately, on every server that shares this store. This cannot be undone.";
    if (!(await confirmed({ title: `Revoke ${key.name}?`, text, verb: "Revoke" }))) return;
    try {
      await send("DELETE", `antiphon/keys/${encodeURIComponent(key.id)}`);
      announce("Key revoked.");
      await this.show(this.id);
    } catch (error) {
      byId("keys-body").prepend(h("p", { class: "failure", role: "alert" }, plain(error.message)));
    }
  }
}

async function all(revoked) {
  const found = [];
  let page;
  do {
    const after = page ? `&after=${encodeURIComponent(page.last_id)}` : "";
    page = await getJson(`antiphon/keys?limit=100&revoked=${revoked}${after}`);
    found.push(...page.data);
  } while (page.has_more);
  return found;
}

const day = (unix) => new Date(unix * 1000).toISOString().slice(0, 10);
const today = () => Math.floor(Date.now() / 1000 / DAY) * DAY;
const days = () => `from=${day(today() - (DAYS - 1) * DAY)}&to=${day(today())}`;
const dayText = (unix) =>
  new Date(unix * 1000).toLocaleDateString([], { month: "short", day: "numeric", timeZone: "UTC" });
const globs = (patterns) => (patterns.length ? plain(patterns.join(", ")) : "none");
const amount = (name, value) => (name.startsWith("money") ? money(value) : count(value));

function limits(key) {
  const given = Object.entries(LIMITS).filter(([name]) => key[name] !== null);
  const budgets = Object.entries(key.budgets).map(([name, value]) => `${BUDGETS[name]}: ${amount(name, value)}`);
  return [...given.map(([name, label]) => `${label}: ${count(key[name])}`), ...budgets].join(", ") || "default";
}

function state(key) {
  const expired = key.expires_at !== null && key.expires_at * 1000 <= Date.now();
  const states = [
    key.revoked && "revoked",
    expired && "expired",
    key.admin && "admin",
    key.source === "settings" && "in the settings",
    key.previous_secret_expires_at && key.previous_secret_expires_at * 1000 > Date.now() && "two secrets",
  ].filter(Boolean);
  return states.join(", ") || "active";
}

function fieldsOf(key) {
  return [
    ["Id", h("code", {}, plain(key.id))],
    ["Owner", plain(key.owner)],
    ["Models", globs(key.models)],
    ["Tools", globs(key.tools)],
    ["Limits", limits(key)],
    ["State", state(key)],
    ["Expires", key.expires_at ? when(key.expires_at) : "never"],
    ["Created", key.created_at ? when(key.created_at) : "in the settings file"],
    [
      "Previous secret works until",
      key.previous_secret_expires_at ? when(key.previous_secret_expires_at) : "no longer",
    ],
  ];
}

function figures(used) {
  const times = Array.from({ length: DAYS }, (_, index) => today() - (DAYS - 1 - index) * DAY);
  const rows = new Map(used.data.map((row) => [row.day, row]));
  const of = (name) => times.map((time) => rows.get(day(time))?.[name] ?? 0);
  const common = { times, time: dayText, stacked: true };
  const series = [
    { name: "Input", values: of("input_tokens") },
    { name: "Output", values: of("output_tokens") },
  ];
  const cost = [{ name: "Cost", values: of("cost") }];
  return [
    plot({ ...common, title: "Tokens by day", series, show: short }),
    used.total.cost > 0
      ? plot({ ...common, title: "Cost by day", series: cost, show: money, ticks: moneyTicks })
      : plot({
          ...common,
          title: "Requests by day",
          series: [{ name: "Requests", values: of("requests") }],
          show: short,
        }),
  ];
}

function budget({ limit, amount: most, used, resets_at }) {
  const text = `${amount(limit, used)} of ${amount(limit, most)}, until ${dayText(resets_at)}`;
  return bar(BUDGETS[limit] ?? limit, used, most, text);
}

function audit(changes) {
  const rows = changes.map((change) => [
    when(change.at),
    plain(change.actor),
    change.action,
    plain(differences(change.before, change.after).join("; ")),
  ]);
  return dataTable("Key changes", [["When"], ["By"], ["Action"], ["What"]], rows, { empty: "No changes." });
}

function differences(before, after) {
  if (!before || !after) return [];
  const text = (value) => (value === null ? "default" : typeof value === "object" ? JSON.stringify(value) : `${value}`);
  return Object.keys(after)
    .filter((name) => text(before[name] ?? null) !== text(after[name]))
    .map((name) => `${name}: ${text(before[name] ?? null)} → ${text(after[name])}`);
}

function failure(error, id) {
  if (error.status === 403) {
    return [
      h(
        "p",
        { class: "note" },
        "Managing keys requires an admin key (",
        h("code", {}, "admin = true"),
        " in its settings). Enter one under API key.",
      ),
    ];
  }
  const back = id ? h("p", {}, h("a", { href: "#/keys" }, "All keys")) : null;
  return [h("div", { class: "failure", role: "alert" }, plain(error.message), back)];
}

// Dialogs.

const field = (id, label, input, note) =>
  h("div", { class: "field" }, h("label", { for: id }, label), input, note ? h("p", { class: "note" }, note) : null);

/** Ask for the fields of a key; `save` gets those that differ from `key`. Resolves to its result, or null. */
function form({ title, verb, key = null }, save) {
  const input = (name, type, value, props = {}) =>
    h("input", { id: `key-${name}`, type, value: value ?? "", autocomplete: "off", spellcheck: "false", ...props });
  const list = (values) => (!values || values.join() === "*" ? "" : values.join(", ") || "none");
  const fields = {
    name: key ? null : input("name", "text", "", { required: true, maxlength: 64, autofocus: true }),
    owner: input("owner", "text", key?.owner, { maxlength: 200, placeholder: "same as the name" }),
    models: input("models", "text", list(key?.models), { placeholder: "all" }),
    tools: input("tools", "text", list(key?.tools), { placeholder: "all" }),
    expires_at: input("expires_at", "date", key?.expires_at ? day(key.expires_at) : ""),
    admin: h("input", { id: "key-admin", type: "checkbox", checked: key?.admin ?? false }),
  };
  const number = { min: 0, placeholder: "default" };
  for (const name of Object.keys(LIMITS)) fields[name] = input(name, "number", key?.[name], { ...number, step: 1 });
  for (const name of Object.keys(BUDGETS)) {
    fields[name] = input(name, "number", key?.budgets[name], { min: 0, step: "any", placeholder: "none" });
  }
  const many = "Comma-separated, for example qwen*. Enter none to allow none.";
  const pairs = (labels) =>
    h(
      "div",
      { class: "key-numbers" },
      Object.entries(labels).map(([name, label]) => field(`key-${name}`, label, fields[name])),
    );
  const body = [
    fields.name ? field("key-name", "Name", fields.name, "Shown in logs and usage. Cannot be changed later.") : null,
    field("key-owner", "Owner", fields.owner, "Keys with the same owner share responses and files."),
    field("key-models", "Models", fields.models, many),
    field("key-tools", "Hosted tools", fields.tools, "For example web_search or mcp:lab."),
    h("fieldset", {}, h("legend", {}, "Limits"), pairs(LIMITS)),
    h("fieldset", {}, h("legend", {}, "Budgets"), pairs(BUDGETS)),
    field("key-expires_at", "Expires", fields.expires_at, "At 00:00 UTC on this day."),
    h("label", { class: "check" }, fields.admin, "Admin: can manage keys and see all usage"),
  ].filter(Boolean);
  return dialog({ title, verb, body, fields }, () => {
    const sent = values(fields);
    const before = key ? { ...key, budgets: Object.keys(key.budgets).length ? key.budgets : null } : {};
    if (key?.expires_at && sent.expires_at && day(key.expires_at) === day(sent.expires_at)) delete sent.expires_at;
    for (const [name, value] of Object.entries(sent)) {
      const default_ = name === "models" || name === "tools" ? ["*"] : null;
      if (JSON.stringify(value ?? default_) === JSON.stringify(before[name] ?? default_)) delete sent[name];
    }
    return save(sent);
  });
}

function values(fields) {
  const list = (text) =>
    !text
      ? null
      : text === "none"
        ? []
        : text
            .split(",")
            .map((each) => each.trim())
            .filter(Boolean);
  const text = (name) => fields[name].value.trim();
  const number = (name) => (text(name) === "" ? null : Number(text(name)));
  const budgets = Object.keys(BUDGETS).filter((name) => text(name) !== "");
  return {
    ...(fields.name ? { name: text("name") } : {}),
    owner: text("owner") || null,
    models: list(text("models")),
    tools: list(text("tools")),
    ...Object.fromEntries(Object.keys(LIMITS).map((name) => [name, number(name)])),
    budgets: budgets.length ? Object.fromEntries(budgets.map((name) => [name, number(name)])) : null,
    expires_at: text("expires_at") ? Date.parse(`${text("expires_at")}T00:00:00Z`) / 1000 : null,
    admin: fields.admin.checked,
  };
}

/** Show a dialog that stays open until `act` succeeds; resolves to its result, or to null if it is cancelled. */
function dialog({ title, verb, body, fields = {} }, act) {
  return new Promise((resolve) => {
    let result = null;
    const problem = h("p", { class: "problem", role: "alert" });
    const submit = h("button", { class: "primary" }, verb);
    const made = h(
      "dialog",
      { class: "key-form", "aria-labelledby": "key-form-title" },
      h(
        "form",
        {},
        h("h2", { id: "key-form-title" }, title),
        body,
        problem,
        h(
          "div",
          { class: "buttons" },
          button("Cancel", () => made.close()),
          submit,
        ),
      ),
    );
    made.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      problem.textContent = "";
      try {
        result = await act();
        made.close();
      } catch (error) {
        problem.textContent = plain(error.message);
        fields[(error.param ?? "").split(/[.[]/)[0]]?.focus();
      } finally {
        submit.disabled = false;
      }
    });
    made.addEventListener("close", () => resolve(result));
    openModal(made);
  });
}

/** Show the secret of a key, which the server does not show again. */
function shown({ name, secret }) {
  const body = [
    h("p", {}, "Copy it now. It is not shown again."),
    h("p", { class: "toolbar" }, h("code", { class: "key-secret" }, secret), copyButton(secret, "Key")),
  ];
  return dialog({ title: `Secret of ${plain(name)}`, verb: "Done", body }, async () => true);
}
