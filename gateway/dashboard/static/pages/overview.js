// How everything is, at a glance and over time.

import { get } from "../api.js";
import { BINARY, WHOLE, chart } from "../charts.js";
import { h, replace } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { live } from "../live.js";
import { errorBox, pageHead, segmented, tile } from "../ui.js";
import { newestJobs } from "./newest_jobs.js";

const RANGES = [["10m", "10 min"], ["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["14d", "14 d"]];
const LENGTHS_MS = { "10m": 600_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "14d": 1_209_600_000 };
/** Sums over a row's time, shown a second. */
const SUMS = ["accepted", "done", "error", "canceled"];
const EVERY_MS = 10_000;
/** Seconds that the numbers on top remember. */
const LATELY = 60;

const rate = (n) => `${count(n)}/s`;
const CHARTS = [
  { title: "Throughput", hint: "Jobs a second", show: rate, series: [{ name: "done", column: "done", colour: "--good", fill: true }, { name: "accepted", column: "accepted", colour: "--accent" }] },
  { title: "Latency", hint: "From the queue to the end of a job", show: duration, least: 5, series: [{ name: "p50", column: "e2e_p50_ms", colour: "--accent", fill: true }, { name: "p95", column: "e2e_p95_ms", colour: "--violet" }, { name: "p99", column: "e2e_p99_ms", colour: "--warn" }] },
  { title: "Backlog", hint: "Jobs that wait, run, or wait for their time", show: count, steps: WHOLE, series: [{ name: "waiting", column: "depth", colour: "--warn", fill: true }, { name: "running", column: "running", colour: "--accent" }, { name: "scheduled", column: "scheduled", colour: "--violet", dash: true }] },
  { title: "Errors", hint: "Jobs a second that did not end well", show: rate, series: [{ name: "error", column: "error", colour: "--bad", fill: true }, { name: "canceled", column: "canceled", colour: "--warn" }] },
  { title: "Tokens", hint: "Tokens a second that models read and wrote", show: rate, series: [{ name: "written", column: "completion_tokens_per_s", colour: "--accent", fill: true }, { name: "read", column: "prompt_tokens_per_s", colour: "--violet" }] },
  { title: "Memory", hint: "What is free on the fullest machine, and what all workers take", show: bytes, steps: BINARY, least: 1024, series: [{ name: "free", column: "available_bytes", colour: "--good", fill: true }, { name: "workers", column: "workers_rss_bytes", colour: "--accent" }] },
  { title: "Temperature", hint: "The hottest sensor", show: (n) => `${Math.round(n)} °C`, least: 60, series: [{ name: "hottest", column: "temperature_c", colour: "--bad", fill: true }] },
  { title: "GPU", hint: "The busiest one", show: (n) => `${Math.round(n * 100)} %`, least: 1, series: [{ name: "load", column: "gpu_load", colour: "--violet", fill: true }] },
];

export default async function page({ query, setQuery, me }) {
  let range = LENGTHS_MS[query.get("range")] ? query.get("range") : "10m";
  const charts = CHARTS.map(chart);
  const tiles = makeTiles(me);
  const trouble = h("div");
  const jobs = me.reads("jobs") ? newestJobs() : null;
  let seen = null;
  let lately = [];
  let timer = 0;
  let gone = false;

  async function load() {
    clearTimeout(timer);
    const asked = range;
    try {
      const stats = await get("/v1/stats", { range });
      if (gone || asked !== range) return;
      seen = columnsOf(stats);
      lately = range === "10m" ? rowsOf(seen, LATELY) : lately.length ? lately : [stats.now];
      replace(trouble);
      draw();
      showTiles(tiles, lately, seen, stats.now);
    } catch (error) {
      if (!gone && !seen) replace(trouble, errorBox(error));
    }
    if (!gone && range !== "10m") timer = setTimeout(() => (live.paused || document.hidden ? (timer = 0) : load()), EVERY_MS);
  }
  function draw() {
    const to = seen.ts.at(-1) ?? Date.now();
    for (const one of charts) one.set(seen, to - LENGTHS_MS[range], to);
  }
  const offs = [
    live.on("stats", (point) => {
      if (!seen) return;
      if (range === "10m") {
        append(seen, point);
        draw();
      }
      lately = [...lately.slice(1 - LATELY), point];
      showTiles(tiles, lately, seen, point);
    }),
    live.on("again", load),
    ...(jobs ? [live.on("jobs", jobs.changed), live.on("again", jobs.load)] : []),
  ];
  const repaint = () => charts.forEach((one) => one.redraw());
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", repaint);

  const node = h(
    "div",
    { class: "stack" },
    pageHead("Overview", segmented("Time shown", RANGES, range, (picked) => {
      range = picked;
      setQuery({ range: picked === "10m" ? null : picked });
      load();
    })),
    trouble,
    h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.node)),
    h("div", { class: "charts" }, charts.map((one) => one.node)),
    jobs?.node,
  );
  jobs?.load();
  // The charts need their width first.
  requestAnimationFrame(load);
  return {
    title: "Overview",
    node,
    destroy() {
      gone = true;
      clearTimeout(timer);
      offs.forEach((off) => off());
      charts.forEach((one) => one.destroy());
      dark.removeEventListener("change", repaint);
    },
  };
}

/** The answer's columns, sums as rates. */
function columnsOf({ series, resolution_s: s }) {
  const columns = { ...series };
  for (const name of SUMS) columns[name] = series[name].map((value) => (value === null ? null : value / s));
  return columns;
}

/** The last rows, each an object. */
function rowsOf(columns, most) {
  const from = Math.max(0, columns.ts.length - most);
  return columns.ts.slice(from).map((_, i) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[from + i]])));
}

/** One more second; what is older than the range goes. */
function append(columns, point) {
  if (point.ts <= (columns.ts.at(-1) ?? 0)) return;
  for (const [name, values] of Object.entries(columns)) values.push(point[name] ?? null);
  const from = point.ts - LENGTHS_MS["10m"];
  const old = columns.ts.findIndex((ts) => ts >= from);
  if (old > 0) for (const values of Object.values(columns)) values.splice(0, old);
}

function makeTiles(me) {
  return {
    rate: tile("Jobs done", { hint: "A second, over the last ten" }),
    latency: tile("Latency p95", { hint: "From the queue to the end, over the last seconds" }),
    waiting: tile("Waiting", { href: "/ui/queues" }),
    running: tile("Running", { href: "/ui/workers" }),
    errors: tile("Errors", { href: me.reads("jobs") ? "/ui/jobs?status=error" : null, hint: "Of all that ended in the time shown" }),
    dead: tile("Dead letters", { href: me.reads("all") ? "/ui/dead" : null }),
    tokens: tile("Tokens", { hint: "A second" }),
    memory: tile("Memory free", { hint: "On the machine that has least" }),
  };
}

/** `lately`: the last seconds, oldest first. */
function showTiles(tiles, lately, columns, now) {
  const recent = (name) => mean(lately.slice(-10).map((point) => point[name]));
  tiles.rate.set(rate(recent("done") ?? 0), `${rate(recent("accepted") ?? 0)} accepted`);
  const ends = now.e2e_p95_ms === null ? lately.findLast((point) => point.e2e_p95_ms !== null) : now;
  tiles.latency.set(duration(ends?.e2e_p95_ms), ends ? `p50 ${duration(ends.e2e_p50_ms)}` : "no job ended lately");
  tiles.waiting.set(count(now.depth), now.depth ? `oldest ${duration(now.oldest_age_ms)}` : now.scheduled ? `${count(now.scheduled)} scheduled` : "nothing waits", now.oldest_age_ms > 60_000 ? "warn" : "");
  tiles.running.set(count(now.running), now.workers ? `of ${count(now.slots)} · ${count(now.workers)} ${now.workers === 1 ? "worker" : "workers"}` : "no worker lives", now.workers ? "" : "bad");
  const ended = SUMS.slice(1).reduce((sum, name) => sum + total(columns[name]), 0);
  const share = ended ? total(columns.error) / ended : 0;
  tiles.errors.set(`${count(share * 100)} %`, ended ? "of what ended" : "nothing ended", share > 0.05 ? "bad" : share > 0 ? "warn" : "");
  tiles.dead.set(count(now.dead_letters), now.dead_letters ? "have a look" : "none", now.dead_letters ? "warn" : "");
  const written = now.completion_tokens_per_s;
  tiles.tokens.set(written === null ? "–" : rate(written), written === null ? "" : `${rate(now.prompt_tokens_per_s ?? 0)} read`);
  tiles.memory.set(bytes(now.available_bytes), now.temperature_c === null ? `workers ${bytes(now.workers_rss_bytes)}` : `${Math.round(now.temperature_c)} °C`);
}

const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? total(known) / known.length : null;
}
