// What has been used, what it cost, and how fast it was: by this key, or by all if it has the right `admin`.

import { getJson } from "./lib/api.js";
import { askForKey } from "./lib/dialog.js";
import { announce, byId, h } from "./lib/dom.js";
import { plot } from "./lib/plot.js";
import { bar, card, dataTable, money, moneyTicks, short, tiles } from "./lib/tables.js";
import { count, plain, seconds } from "./lib/text.js";

const DAY = 86400;
const MOST = 5; // names that are drawn apart; the others are one
const LIMITS = {
  tokens_per_day: "tokens per day",
  tokens_per_month: "tokens per month",
  money_per_day: "cost per day",
  money_per_month: "cost per month",
};

export class Usage {
  constructor() {
    for (const id of ["usage-days", "usage-group"]) byId(id).addEventListener("change", () => this.show());
    byId("usage-refresh").addEventListener("click", async () => {
      await this.show();
      announce("Refreshed.");
    });
  }

  async show() {
    const asked = (this.asked = {});
    const place = byId("usage-body");
    const days = Number(byId("usage-days").querySelector(":checked").value);
    const group = byId("usage-group").value;
    try {
      const now = Math.floor(Date.now() / 1000 / DAY) * DAY;
      const first = now - (days - 1) * DAY;
      const [used, hours, budgets] = await Promise.all([
        getJson(`antiphon/usage?from=${day(first)}&to=${day(now)}&group=day,${group}`),
        getJson("antiphon/latency?minutes=30"),
        getJson("antiphon/budgets"),
      ]);
      if (this.asked !== asked) return;
      const times = Array.from({ length: days }, (_, index) => first + index * DAY);
      place.replaceChildren(...page({ used, hours, budgets: budgets.data, times, group }));
    } catch (error) {
      if (this.asked !== asked) return;
      askForKey(error);
      place.replaceChildren(h("p", { class: "failure", role: "alert" }, plain(error.message)));
    }
  }

  hide() {
    this.asked = null;
  }

  reset() {
    byId("usage-body").replaceChildren();
  }
}

const day = (unix) => new Date(unix * 1000).toISOString().slice(0, 10);
const dayText = (unix) =>
  new Date(unix * 1000).toLocaleDateString([], { month: "short", day: "numeric", timeZone: "UTC" });
const clock = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function page({ used, hours, budgets, times, group }) {
  const { total } = used;
  const totals = grouped(used.data, group);
  const of = (field) => byDay(used.data, totals, group, times, field);
  const money_ = total.cost > 0;
  const slots = filled(hours);
  const lines = (measure) =>
    [
      ["median", "Median"],
      ["p95", "95th percentile"],
    ].map(([field, name]) => ({ name, values: slots.map((slot) => slot[measure][field]) }));
  const hourly = {
    times: slots.map(({ start }) => start),
    time: clock,
    empty: "No requests in the last 24 hours.",
  };
  const figures = [
    money_
      ? plot({
          title: "Cost by day",
          times,
          series: of("cost"),
          show: money,
          ticks: moneyTicks,
          time: dayText,
          stacked: true,
        })
      : null,
    plot({
      title: "Tokens by day, in and out",
      times,
      series: of("total_tokens"),
      show: short,
      time: dayText,
      stacked: true,
    }),
    plot({
      ...hourly,
      title: "Requests, last 24 hours",
      series: [
        ["answered", "Answered"],
        ["failed", "Failed", "bad"],
        ["refused", "Refused", "plot-5"],
      ].map(([field, name, tone]) => ({
        name,
        tone,
        values: slots.map((slot) => (field === "answered" ? slot.requests - slot.failed : slot[field])),
      })),
      show: short,
      stacked: true,
      wide: money_,
    }),
    plot({ ...hourly, title: "Time to first token, last 24 hours", series: lines("first_token"), show: duration }),
    plot({ ...hourly, title: "Total time, last 24 hours", series: lines("total"), show: duration }),
  ].filter(Boolean);
  return [
    tiles([
      ["Cost", money(total.cost), money_ ? null : "no prices set"],
      ["Tokens", short(total.total_tokens), `${short(total.input_tokens)} in, ${short(total.output_tokens)} out`],
      ["Requests", count(total.requests), null],
      ["Failed (24 h)", count(hours.total.failed), `${count(hours.total.refused)} refused`],
      [
        "First token (24 h)",
        duration(hours.total.first_token.median),
        `median; p95 ${duration(hours.total.first_token.p95)}`,
      ],
      ["Total time (24 h)", duration(hours.total.total.median), `median; p95 ${duration(hours.total.total.p95)}`],
    ]),
    budgets.length ? card("Budgets", budgets.map(budget)) : null,
    h("div", { class: "figures" }, figures),
    card(
      `By ${group}`,
      dataTable(
        `Usage by ${group}`,
        [
          [capital(group)],
          ["Requests", true],
          ["Input", true],
          ["Cached input", true],
          ["Output", true],
          ["Tokens", true],
          ["Cost", true],
        ],
        totals.map(([name, each]) => [
          h("code", {}, plain(name)),
          count(each.requests),
          count(each.input_tokens),
          count(each.cached_input_tokens),
          count(each.output_tokens),
          count(each.total_tokens),
          money(each.cost),
        ]),
        { empty: "No usage in this period." },
      ),
    ),
    h("p", { class: "note" }, "Days are in UTC. Tokens are input and output tokens as reported by the backends."),
  ].filter(Boolean);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const duration = (value) => (value === null || value === undefined ? "–" : seconds(value * 1000));

function budget({ key, limit, amount, used, resets_at }) {
  const show = limit.startsWith("money") ? money : count;
  return bar(
    `${plain(key)}: ${LIMITS[limit] ?? limit}`,
    used,
    amount,
    `${show(used)} of ${show(amount)}, resets ${dayText(resets_at)}`,
  );
}

// The sums of each model, key or backend, the largest first.
function grouped(rows, group) {
  const sums = new Map();
  for (const row of rows) {
    const sum = sums.get(row[group]) ?? {};
    for (const [field, value] of Object.entries(row))
      if (typeof value === "number") sum[field] = (sum[field] ?? 0) + value;
    sums.set(row[group], sum);
  }
  return [...sums].sort(([, a], [, b]) => b.cost - a.cost || b.total_tokens - a.total_tokens);
}

function byDay(rows, totals, group, times, field) {
  const names = totals.slice(0, totals.length > MOST + 1 ? MOST : MOST + 1).map(([name]) => name);
  const others = totals.length > names.length;
  const values = new Map([...names, ...(others ? [null] : [])].map((name) => [name, times.map(() => 0)]));
  for (const row of rows) {
    const index = times.indexOf(Date.parse(`${row.day}T00:00:00Z`) / 1000);
    const its = values.get(names.includes(row[group]) ? row[group] : null);
    if (index >= 0) its[index] += row[field];
  }
  return [...values].map(([name, each]) => ({ name: name ?? "others", values: each }));
}

// Every slot from the first one with a request until now.
function filled({ data, slot_seconds }) {
  if (!data.length) return [];
  const known = new Map(data.map((slot) => [slot.start, slot]));
  const none = {
    requests: 0,
    failed: 0,
    refused: 0,
    first_token: { median: null, p95: null },
    total: { median: null, p95: null },
  };
  const slots = [];
  const last = Math.floor(Date.now() / 1000 / slot_seconds) * slot_seconds;
  for (let start = Math.min(data[0].start, last - 11 * slot_seconds); start <= last; start += slot_seconds)
    slots.push(known.get(start) ?? { ...none, start });
  return slots;
}
