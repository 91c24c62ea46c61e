// Charts of columns over time, on uPlot. Values that are null are gaps.

import { h } from "./dom.js";
import { inUtc } from "./format.js";
import uPlot from "./vendor/uPlot.js";

/** Steps of a scale: whole numbers, and powers of two for bytes. */
export const WHOLE = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
export const BINARY = Array.from({ length: 50 }, (_, i) => 2 ** i);

const HEIGHT = 168;
const DAY_S = 86_400;

/**
 * One chart. `series`: [{name, column, colour: '--accent', fill: true, dash: true}]; `show(value)`
 * words a value; `least`: the scale reaches at least so high;
 * `steps`: how far apart the lines of the scale may be.
 */
export function chart({ title, series, show, least = 1, steps, hint }) {
  const legend = h("dl", { class: "legend" });
  const plot = h("div", { class: "plot" });
  const node = h(
    "figure",
    { class: "card chart" },
    h("figcaption", { class: "card-head" }, h("h2", { title: hint }, title), legend),
    plot,
  );
  const shown = series.map((one) => {
    const value = h("dd", null, "–");
    const key = h("span", { class: "swatch", "aria-hidden": "true" });
    key.style.background = `var(${one.colour})`;
    legend.append(h("div", null, h("dt", null, key, one.name), value));
    return value;
  });
  const tell = (u) => {
    const at = u.cursor.idx ?? lastKnown(u.data, series.length);
    series.forEach((one, i) => {
      const value = u.data[i + 1][at];
      const words = value === null || value === undefined ? "–" : show(value);
      if (shown[i].textContent !== words) shown[i].textContent = words;
    });
  };
  let u = null;
  const draw = (data) => {
    if (u) {
      u.setData(data);
      return;
    }
    u = new uPlot(options({ series, show, least, steps, tell }, plot.clientWidth), data, plot);
  };
  const resized = new ResizeObserver(() => u && plot.clientWidth && u.setSize({ width: plot.clientWidth, height: HEIGHT }));
  resized.observe(plot);
  return {
    node,
    /** Columns by name, `ts` in milliseconds among them. */
    set(columns, from, to) {
      const data = [columns.ts.map((ms) => ms / 1000), ...series.map((one) => columns[one.column])];
      node.hidden = series.every((one) => columns[one.column].every((value) => value === null));
      if (node.hidden || !plot.clientWidth) return;
      range = [from / 1000, to / 1000];
      draw(data);
      tell(u);
    },
    redraw: () => u?.redraw(false, true),
    destroy() {
      resized.disconnect();
      u?.destroy();
    },
  };
}

// All charts of a page show the same time.
let range = [0, 1];

function options({ series, show, least, steps, tell }, width) {
  const line = () => colour("--line");
  const dim = () => colour("--dim");
  const axis = { stroke: dim, font: "11px system-ui, sans-serif", ticks: { show: false } };
  return {
    width: width || 300,
    height: HEIGHT,
    padding: [10, 4, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "overview" },
      drag: { x: false, y: false },
      points: { size: 7, width: 0 },
      y: false,
    },
    scales: {
      x: { time: true, range: () => range },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), top(Math.max(high ?? 0, least))] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 76, values: (_, ticks) => ticks.map(moment) },
      { ...axis, grid: { stroke: line, width: 1 }, size: 58, space: 34, gap: 6, incrs: steps, values: (_, ticks) => ticks.map(show) },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.name,
        stroke: () => colour(one.colour),
        fill: one.fill ? () => colour(one.colour, 13) : undefined,
        width: 1.5,
        dash: one.dash ? [4, 3] : undefined,
        points: { show: true, filter: lonely, size: 4, width: 0, fill: () => colour(one.colour) },
      })),
    ],
    hooks: { setCursor: [tell] },
  };
}

/** Points only where there is no line: values between two gaps. */
function lonely(u, at) {
  const values = u.data[at];
  const gap = (i) => values[i] === null || values[i] === undefined;
  const found = [];
  for (let i = u.series[0].idxs[0]; i <= u.series[0].idxs[1]; i += 1) {
    if (!gap(i) && gap(i - 1) && gap(i + 1)) found.push(i);
  }
  return found;
}

/** A little air above the highest value. */
const top = (high) => high * 1.12;

function moment(seconds) {
  const shown = inUtc() ? new Date(seconds * 1000) : new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60_000);
  const text = shown.toISOString();
  if (range[1] - range[0] > 2 * DAY_S) return text.slice(5, 10);
  return range[1] - range[0] < 120 ? text.slice(11, 19) : text.slice(11, 16);
}

/** The newest row with anything in it. */
function lastKnown(data, columns) {
  const rows = data[0].length;
  for (let at = rows - 1; at > Math.max(-1, rows - 30); at -= 1) {
    for (let i = 1; i <= columns; i += 1) if (data[i][at] !== null) return at;
  }
  return rows - 1;
}

// A canvas knows no custom properties: an element that does is asked.
const probe = h("span", { hidden: true });
document.body.append(probe);
const known = new Map();
const forget = () => known.clear();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
new MutationObserver(forget).observe(document.documentElement, { attributeFilter: ["data-theme"] });

function colour(name, percent = 100) {
  const key = name + percent;
  if (!known.has(key)) {
    probe.style.color = percent === 100 ? `var(${name})` : `color-mix(in srgb, var(${name}) ${percent}%, transparent)`;
    known.set(key, getComputedStyle(probe).color);
  }
  return known.get(key);
}
