// Line charts over time, drawn by uPlot. Null values are gaps.

import { h } from "../lib/dom.js";
import { inUtc } from "../lib/format.js";
import uPlot from "../vendor/uPlot.js";

/** Increments of the y axis: whole numbers, and powers of two for bytes. */
export const WHOLE = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
export const BINARY = Array.from({ length: 50 }, (_, i) => 2 ** i);

const HEIGHT = 168;
/** Right of the plot: half of the last label of the x axis, which may be centred on the edge. */
const PADDING_RIGHT = 20;
const MIN_AXIS_WIDTH = 58;
const DAY_S = 86_400;

/**
 * A chart. `series`: [{name, column, colour: '--accent', fill: true, dash: true}]; `format(value)`
 * returns its text; `minTop`: lowest upper end of the y axis; `increments`: distances between the
 * lines of the y axis.
 */
export function chart({ title, series, format, minTop = 1, increments, hint }) {
  const legend = h("dl", { class: "legend" });
  const plot = h("div", { class: "plot" });
  const node = h(
    "figure",
    { class: "card chart" },
    h("figcaption", { class: "card-head" }, h("h2", { title: hint }, title), legend),
    plot,
  );
  const valueNodes = series.map((item) => {
    const value = h("dd", null, "–");
    const key = h("span", { class: "swatch", "aria-hidden": "true" });
    key.style.background = `var(${item.colour})`;
    legend.append(h("div", null, h("dt", null, key, item.name), value));
    return value;
  });
  const updateLegend = (plotter) => {
    const index = plotter.cursor.idx ?? lastRowWithValue(plotter.data, series.length);
    series.forEach((item, i) => {
      const value = plotter.data[i + 1][index];
      const text = value === null || value === undefined ? "–" : format(value);
      if (valueNodes[i].textContent !== text) valueNodes[i].textContent = text;
    });
  };
  let plotter = null;
  const drawData = (data) => {
    if (plotter) {
      plotter.setData(data);
      return;
    }
    plotter = new uPlot(options({ series, format, minTop, increments, updateLegend }, plot.clientWidth), data, plot);
  };
  const resizeObserver = new ResizeObserver(() => plotter && plot.clientWidth && plotter.setSize({ width: plot.clientWidth, height: HEIGHT }));
  resizeObserver.observe(plot);
  return {
    node,
    /** Columns by name, including `ts` in milliseconds. */
    set(columns, from, to) {
      const data = [columns.ts.map((ms) => ms / 1000), ...series.map((item) => columns[item.column])];
      node.hidden = series.every((item) => columns[item.column].every((value) => value === null));
      if (node.hidden || !plot.clientWidth) return;
      range = [from / 1000, to / 1000];
      drawData(data);
      updateLegend(plotter);
    },
    redraw: () => plotter?.redraw(false, true),
    destroy() {
      resizeObserver.disconnect();
      plotter?.destroy();
    },
  };
}

// All charts of a page show the same time range.
let range = [0, 1];

function options({ series, format, minTop, increments, updateLegend }, width) {
  const gridColour = () => colour("--line");
  const labelColour = () => colour("--dim");
  const axis = { stroke: labelColour, font: "11px system-ui, sans-serif", ticks: { show: false } };
  return {
    width: width || 300,
    height: HEIGHT,
    padding: [10, PADDING_RIGHT, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "overview" },
      drag: { x: false, y: false },
      points: { size: 7, width: 0 },
      y: false,
    },
    scales: {
      x: { time: true, range: () => range },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), addHeadroom(Math.max(high ?? 0, minTop))] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 76, values: (_, ticks) => ticks.map(formatTime) },
      { ...axis, grid: { stroke: gridColour, width: 1 }, size: axisWidth, space: 34, gap: 6, incrs: increments, values: (_, ticks) => ticks.map(format) },
    ],
    series: [
      {},
      ...series.map((item) => ({
        label: item.name,
        stroke: () => colour(item.colour),
        fill: item.fill ? () => colour(item.colour, 13) : undefined,
        width: 1.5,
        dash: item.dash ? [4, 3] : undefined,
        points: { show: true, filter: isolatedPoints, size: 4, width: 0, fill: () => colour(item.colour) },
      })),
    ],
    hooks: { setCursor: [updateLegend] },
  };
}

/** Width of the y axis: that of its longest label. uPlot calls it repeatedly until it is stable. */
function axisWidth(plotter, labels, index, cycle) {
  const axis = plotter.axes[index];
  if (cycle > 1) return axis._size;
  const font = axis.font[0]; // in pixels of the device
  if (plotter.ctx.font !== font) plotter.ctx.font = font;
  const widths = (labels ?? []).map((label) => plotter.ctx.measureText(label).width / devicePixelRatio);
  return Math.ceil(Math.max(MIN_AXIS_WIDTH, ...widths.map((width) => width + axis.gap + 2)));
}

/** Points are drawn only where there is no line: at values between two gaps. */
function isolatedPoints(plotter, index) {
  const values = plotter.data[index];
  const gap = (i) => values[i] === null || values[i] === undefined;
  const indexes = [];
  for (let i = plotter.series[0].idxs[0]; i <= plotter.series[0].idxs[1]; i += 1) {
    if (!gap(i) && gap(i - 1) && gap(i + 1)) indexes.push(i);
  }
  return indexes;
}

/** Some space above the highest value. */
const addHeadroom = (high) => high * 1.12;

function formatTime(seconds) {
  const time = inUtc() ? new Date(seconds * 1000) : new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60_000);
  const text = time.toISOString();
  if (range[1] - range[0] > 2 * DAY_S) return text.slice(5, 10);
  return range[1] - range[0] < 120 ? text.slice(11, 19) : text.slice(11, 16);
}

/** Index of the newest row that has a value. */
function lastRowWithValue(data, columns) {
  const rows = data[0].length;
  for (let index = rows - 1; index > Math.max(-1, rows - 30); index -= 1) {
    for (let i = 1; i <= columns; i += 1) if (data[i][index] !== null) return index;
  }
  return rows - 1;
}

// A canvas cannot resolve custom properties: they are read from the style of an element.
const probe = h("span", { hidden: true });
document.body.append(probe);
const colourCache = new Map();
const clearColourCache = () => colourCache.clear();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", clearColourCache);
new MutationObserver(clearColourCache).observe(document.documentElement, { attributeFilter: ["data-theme"] });

function colour(name, percent = 100) {
  const key = name + percent;
  if (!colourCache.has(key)) {
    probe.style.color = percent === 100 ? `var(${name})` : `color-mix(in srgb, var(${name}) ${percent}%, transparent)`;
    colourCache.set(key, getComputedStyle(probe).color);
  }
  return colourCache.get(key);
}
