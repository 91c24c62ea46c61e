// Overview: key figures, charts, newest jobs.

import { get } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { bytes, count, duration, plural } from "../lib/format.js";
import { live } from "../lib/live.js";
import { BINARY, WHOLE, chart } from "../components/charts.js";
import { errorBox, pageHead, segmented, tile } from "../components/ui.js";
import { newestJobs } from "./jobs/newest_jobs.js";

const RANGES = [["10m", "10 min"], ["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["14d", "14 d"]];
const RANGE_MS = { "10m": 600_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "14d": 1_209_600_000 };
/** Columns that are sums over the time of a row; shown per second. */
const SUMS = ["accepted", "done", "error", "canceled"];
const REFRESH_MS = 10_000;
/** Seconds of samples behind the tiles. */
const SAMPLE_COUNT = 60;

const rate = (n) => `${count(n)}/s`;
const CHARTS = [
  { title: "Throughput", hint: "Jobs per second", format: rate, series: [{ name: "done", column: "done", colour: "--good", fill: true }, { name: "accepted", column: "accepted", colour: "--accent" }] },
  { title: "Latency", hint: "From queueing a job to its end", format: duration, minTop: 5, series: [{ name: "p50", column: "e2e_p50_ms", colour: "--accent", fill: true }, { name: "p95", column: "e2e_p95_ms", colour: "--violet" }, { name: "p99", column: "e2e_p99_ms", colour: "--warn" }] },
  { title: "Backlog", hint: "Waiting, running and scheduled jobs", format: count, increments: WHOLE, series: [{ name: "waiting", column: "depth", colour: "--warn", fill: true }, { name: "running", column: "running", colour: "--accent" }, { name: "scheduled", column: "scheduled", colour: "--violet", dash: true }] },
  { title: "Errors", hint: "Failed and canceled jobs per second", format: rate, series: [{ name: "error", column: "error", colour: "--bad", fill: true }, { name: "canceled", column: "canceled", colour: "--warn" }] },
  { title: "Tokens", hint: "Tokens per second", format: rate, series: [{ name: "completion", column: "completion_tokens_per_s", colour: "--accent", fill: true }, { name: "prompt", column: "prompt_tokens_per_s", colour: "--violet" }] },
  { title: "Memory", hint: "Lowest free memory of any machine, and memory of all workers", format: bytes, increments: BINARY, minTop: 1024, series: [{ name: "free", column: "available_bytes", colour: "--good", fill: true }, { name: "workers", column: "workers_rss_bytes", colour: "--accent" }] },
  { title: "Temperature", hint: "Hottest sensor of any machine", format: (n) => `${Math.round(n)} °C`, minTop: 60, series: [{ name: "hottest", column: "temperature_c", colour: "--bad", fill: true }] },
  { title: "GPU", hint: "Highest GPU load", format: (n) => `${Math.round(n * 100)} %`, minTop: 1, series: [{ name: "load", column: "gpu_load", colour: "--violet", fill: true }] },
];

export default async function page({ query, setQuery, session }) {
  let range = RANGE_MS[query.get("range")] ? query.get("range") : "10m";
  const charts = CHARTS.map(chart);
  const tiles = createTiles(session);
  const errors = h("div");
  const jobsCard = session.canRead("jobs") ? newestJobs() : null;
  let columns = null;
  let samples = [];
  let timer = 0;
  let destroyed = false;

  async function load() {
    clearTimeout(timer);
    const requested = range;
    try {
      const stats = await get("/v1/stats", { range });
      if (destroyed || requested !== range) return;
      columns = columnsOf(stats);
      samples = range === "10m" ? rowsOf(columns, SAMPLE_COUNT) : samples.length ? samples : [stats.now];
      replace(errors);
      draw();
      showTiles(tiles, samples, columns, stats.now);
    } catch (error) {
      if (!destroyed && !columns) replace(errors, errorBox(error));
    }
    if (!destroyed && range !== "10m") timer = setTimeout(() => (live.paused || document.hidden ? (timer = 0) : load()), REFRESH_MS);
  }
  function draw() {
    const to = columns.ts.at(-1) ?? Date.now();
    for (const item of charts) item.set(columns, to - RANGE_MS[range], to);
  }
  const unsubscribers = [
    live.on("stats", (point) => {
      if (!columns) return;
      if (range === "10m") {
        append(columns, point);
        draw();
      }
      samples = [...samples.slice(1 - SAMPLE_COUNT), point];
      showTiles(tiles, samples, columns, point);
    }),
    live.on("resync", load),
    ...(jobsCard ? [live.on("jobs", jobsCard.update), live.on("resync", jobsCard.load)] : []),
  ];
  const redraw = () => charts.forEach((item) => item.redraw());
  const darkScheme = matchMedia("(prefers-color-scheme: dark)");
  darkScheme.addEventListener("change", redraw);

  const node = h(
    "div",
    { class: "stack" },
    pageHead("Overview", segmented("Time range", RANGES, range, (selected) => {
      range = selected;
      setQuery({ range: selected === "10m" ? null : selected });
      load();
    })),
    errors,
    h("div", { class: "tiles" }, Object.values(tiles).map((item) => item.node)),
    h("div", { class: "charts" }, charts.map((item) => item.node)),
    jobsCard?.node,
  );
  jobsCard?.load();
  // The charts need their layout width.
  requestAnimationFrame(load);
  return {
    title: "Overview",
    node,
    destroy() {
      destroyed = true;
      clearTimeout(timer);
      unsubscribers.forEach((unsubscribe) => unsubscribe());
      charts.forEach((item) => item.destroy());
      darkScheme.removeEventListener("change", redraw);
    },
  };
}

/** Columns of the response; sums become rates. */
function columnsOf({ series, resolution_s: s }) {
  const columns = { ...series };
  for (const name of SUMS) columns[name] = series[name].map((value) => (value === null ? null : value / s));
  return columns;
}

/** The last rows as objects. */
function rowsOf(columns, limit) {
  const from = Math.max(0, columns.ts.length - limit);
  return columns.ts.slice(from).map((_, i) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[from + i]])));
}

/** Append a sample; samples older than the range are dropped. */
function append(columns, point) {
  if (point.ts <= (columns.ts.at(-1) ?? 0)) return;
  for (const [name, values] of Object.entries(columns)) values.push(point[name] ?? null);
  const from = point.ts - RANGE_MS["10m"];
  const old = columns.ts.findIndex((ts) => ts >= from);
  if (old > 0) for (const values of Object.values(columns)) values.splice(0, old);
}

function createTiles(session) {
  return {
    rate: tile("Jobs done", { hint: "Per second, over the last 10 s" }),
    latency: tile("Latency p95", { hint: "From queueing a job to its end, over the last 10 s" }),
    waiting: tile("Waiting", { href: "/ui/queues" }),
    running: tile("Running", { href: "/ui/workers" }),
    errors: tile("Errors", { href: session.canRead("jobs") ? "/ui/jobs?status=error" : null, hint: "Share of the jobs that finished in the time range" }),
    dead: tile("Dead letters", { href: session.canRead("all") ? "/ui/dead" : null }),
    tokens: tile("Tokens", { hint: "Per second" }),
    memory: tile("Free memory", { hint: "Lowest of any machine" }),
  };
}

/** `samples`: the last seconds, oldest first. */
function showTiles(tiles, samples, columns, now) {
  const recentMean = (name) => mean(samples.slice(-10).map((point) => point[name]));
  tiles.rate.set(rate(recentMean("done") ?? 0), `${rate(recentMean("accepted") ?? 0)} accepted`);
  const latest = now.e2e_p95_ms === null ? samples.findLast((point) => point.e2e_p95_ms !== null) : now;
  tiles.latency.set(duration(latest?.e2e_p95_ms), latest ? `p50 ${duration(latest.e2e_p50_ms)}` : "no recent jobs");
  tiles.waiting.set(count(now.depth), now.depth ? `oldest ${duration(now.oldest_age_ms)}` : now.scheduled ? `${count(now.scheduled)} scheduled` : "queue is empty", now.oldest_age_ms > 60_000 ? "warn" : "");
  tiles.running.set(count(now.running), now.workers ? `of ${plural(now.slots, "slot")} · ${plural(now.workers, "worker")}` : "no workers connected", now.workers ? "" : "bad");
  const ended = SUMS.slice(1).reduce((acc, name) => acc + sum(columns[name]), 0);
  const share = ended ? sum(columns.error) / ended : 0;
  tiles.errors.set(`${count(share * 100)} %`, ended ? "of finished jobs" : "no finished jobs", share > 0.05 ? "bad" : share > 0 ? "warn" : "");
  tiles.dead.set(count(now.dead_letters), now.dead_letters ? "to review" : "none", now.dead_letters ? "warn" : "");
  const completionRate = now.completion_tokens_per_s;
  tiles.tokens.set(completionRate === null ? "–" : rate(completionRate), completionRate === null ? "" : `prompt ${rate(now.prompt_tokens_per_s ?? 0)}`);
  tiles.memory.set(bytes(now.available_bytes), now.temperature_c === null ? `workers ${bytes(now.workers_rss_bytes)}` : `${Math.round(now.temperature_c)} °C`);
}

const sum = (values) => values.reduce((acc, value) => acc + (value ?? 0), 0);

function mean(values) {
  const numbers = values.filter((value) => value !== null);
  return numbers.length ? sum(numbers) / numbers.length : null;
}
