// Plots over time, each with the same numbers as a table.

import { h } from "./dom.js";
import { plain } from "./text.js";

/** @type {any} */
let uPlot = null; // loaded with the first figure
let loading = null;

async function load() {
  loading ??= import("../../vendor/uplot/uPlot.esm.js");
  uPlot = (await loading).default;
}

const HEIGHT = 200;
const COLOURS = 6;

// A figure: `times` are Unix times, `series` [{ name, values, tone }], where null is no value. With `stacked`, bars stand on
// each other; else they are lines. `show(value)` is the text of a value, `ticks(values)` are
// those of an axis, and `time(unix)` is that of a time. The figure is drawn when it is in the page.
export function plot({
  title,
  times,
  series,
  show,
  time,
  ticks = (values) => values.map(show),
  stacked = false,
  wide = false,
  empty = "No data in this period.",
}) {
  const names = series.map(({ name, tone }, index) =>
    h(
      "li",
      {},
      h("span", { class: "swatch", "data-colour": tone ?? index % COLOURS, "aria-hidden": "true" }),
      plain(name),
    ),
  );
  const place = h("div", { class: "plot", "aria-hidden": "true" });
  const read = h("p", { class: "plot-read", "aria-hidden": "true" });
  const figure = h("figure", { class: `card figure${wide ? " wide" : ""}`, "aria-label": title }, h("h3", {}, title));
  if (!times.length || !series.length) {
    figure.append(h("p", { class: "note" }, empty));
    return figure;
  }
  figure.append(
    place,
    h("ul", { class: "legend" }, names),
    h("div", { class: "plot-foot" }, table(title, times, series, show, time), read),
  );
  const drawn = new Drawing(place, read, { times, series, show, ticks, time, stacked });
  drawings.add(drawn);
  sizes.observe(place);
  placed.set(place, drawn);
  return figure;
}

function table(title, times, series, show, time) {
  const rows = times
    .map((at, index) => [at, series.map(({ values }) => values[index])])
    .filter(([, values]) => values.some((value) => value));
  return h(
    "details",
    { class: "figure-table" },
    h("summary", {}, "As a table"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}, as a table` },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "Time"),
            series.map(({ name }) => h("th", { scope: "col", class: "number" }, plain(name))),
          ),
        ),
        h(
          "tbody",
          {},
          rows.toReversed().map(([at, values]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, time(at)),
              values.map((value) =>
                h("td", { class: "number" }, value === null || value === undefined ? "–" : show(value)),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

class Drawing {
  plot = null;

  constructor(place, read, data) {
    this.place = place;
    this.read = read;
    this.data = data;
  }

  draw() {
    if (!uPlot) {
      load().then(() => this.place.clientWidth && this.draw());
      return;
    }
    this.plot?.destroy();
    this.place.replaceChildren();
    const { times, series, ticks, time, stacked } = this.data;
    const colours = series.map(({ tone }, index) => colour(tone ? `--${tone}` : `--plot-${(index % COLOURS) + 1}`));
    const muted = colour("--muted");
    const grid = { stroke: colour("--line"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const sums = stacked ? cumulated(series) : series.map(({ values }) => values);
    const options = {
      width: this.place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 30, 0, 0],
      cursor: { y: false, points: { show: !stacked }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, range: stacked ? around(times) : undefined },
        y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] },
      },
      axes: [
        {
          stroke: muted,
          font,
          grid: { show: false },
          ticks: { show: false },
          size: 28,
          splits: (chart) => some(times, chart.bbox.width / devicePixelRatio / 80),
          values: (_, splits) => splits.map((at) => time(at)),
        },
        {
          stroke: muted,
          font,
          grid,
          ticks: { show: false },
          size: 64,
          space: 40,
          values: (_, splits) => ticks(splits),
        },
      ],
      series: [
        {},
        ...sums.map((_, index) => ({
          stroke: stacked ? undefined : colours[index],
          fill: stacked ? colours[index] : undefined,
          width: stacked ? 0 : 2,
          points: { show: !stacked && times.length < 40, size: 5, fill: colours[index] },
          paths: stacked ? uPlot.paths.bars({ size: [0.72, 42], radius: 0 }) : undefined,
        })),
      ],
      hooks: { setCursor: [(chart) => this.tell(chart.cursor.idx)] },
    };
    // What stands on top is the highest, and is drawn first.
    const order = stacked ? sums.map((_, index) => sums.length - 1 - index) : sums.map((_, index) => index);
    options.series = [options.series[0], ...order.map((index) => options.series[index + 1])];
    this.plot = new uPlot(options, [times, ...order.map((index) => sums[index])], this.place);
    this.width = this.place.clientWidth;
  }

  tell(index) {
    const { times, series, show, time } = this.data;
    if (index === null || index === undefined) this.read.textContent = "";
    else
      this.read.textContent = `${time(times[index])}: ${
        series
          .filter(({ values }) => values[index] !== null)
          .map(({ name, values }) => `${plain(name)} ${show(values[index])}`)
          .join(" · ") || "nothing"
      }`;
  }
}

const cumulated = (series) => {
  const sums = [];
  for (const { values } of series) sums.push(values.map((value, index) => (value ?? 0) + (sums.at(-1)?.[index] ?? 0)));
  return sums;
};

function around(times) {
  const step = times.length > 1 ? times[1] - times[0] : 3600;
  return [times[0] - step * 0.6, times.at(-1) + step * 0.6];
}

function some(times, most) {
  const step = Math.max(1, Math.ceil(times.length / Math.max(1, most)));
  return times.filter((_, index) => (times.length - 1 - index) % step === 0);
}

// A canvas takes no variables, and no light-dark().
function colour(name) {
  const probe = h("span", { hidden: true });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const drawings = new Set();
const placed = new WeakMap();
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const drawn = placed.get(target);
    if (target.clientWidth && target.clientWidth !== drawn.width) drawn.draw();
  }
});

function redraw() {
  for (const drawn of drawings) {
    if (!drawn.place.isConnected) drawings.delete(drawn);
    else if (drawn.place.clientWidth) drawn.draw();
  }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
