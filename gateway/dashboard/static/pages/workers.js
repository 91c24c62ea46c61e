// Workers: state, host, running jobs.

import { get, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { bytes, count, duration, plural, shortId } from "../lib/format.js";
import { live } from "../lib/live.js";
import { badge, errorBox, pageHead, timeAgo } from "../components/ui.js";

const REFRESH_MS = 2500;

export default async function page() {
  const list = h("div", { class: "stack" });
  const usage = h("p", { class: "dim" });
  let destroyed = false;
  let loadedAt = 0;

  async function load() {
    loadedAt = Date.now();
    try {
      const { workers } = await get("/v1/workers");
      if (destroyed) return;
      show(workers);
    } catch (error) {
      if (!destroyed) replace(list, errorBox(error));
    }
  }
  // Loads with the events of the stream, so that it stops when the stream is paused.
  const unsubscribers = [live.on("stats", () => Date.now() - loadedAt >= REFRESH_MS && load()), live.on("resync", load)];

  function show(workers) {
    const busy = workers.reduce((n, worker) => n + worker.in_flight, 0);
    const slots = workers.reduce((n, worker) => n + worker.max_inflight, 0);
    replace(usage, workers.length ? `${count(busy)} of ${plural(slots, "slot")} busy` : null);
    if (document.activeElement && list.contains(document.activeElement)) {
      const href = document.activeElement.getAttribute("href");
      replace(list, workerCards(workers));
      [...list.querySelectorAll("a")].find((link) => link.getAttribute("href") === href)?.focus();
      return;
    }
    replace(list, workerCards(workers));
  }

  await load();
  return { title: "Workers", node: h("div", null, pageHead("Workers", usage), list), destroy: () => ((destroyed = true), unsubscribers.forEach((unsubscribe) => unsubscribe())) };
}

function workerCards(workers) {
  if (!workers.length) {
    return h("p", { class: "card empty" }, "No workers connected. Jobs are accepted and wait. Start a worker with ", h("code", null, "python -m sluice.worker"), ".");
  }
  return h("div", { class: "grid workers" }, workers.map(workerCard));
}

function workerCard(worker) {
  const stale = Date.now() - worker.seen_ms > 2000 * worker.every_s;
  const state = worker.draining ? "draining" : worker.holding ? "holding" : stale ? "stale" : worker.in_flight ? "running" : "up";
  const label = { draining: "draining", holding: "on hold", stale: "no heartbeat", running: "working", up: "idle" }[state];
  const fact = (name, ...value) => [h("dt", null, name), h("dd", null, value)];
  const host = worker.box ?? {};
  const uptimeMs = worker.seen_ms - worker.started_ms;
  return h(
    "article",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", { class: "clip", title: worker.consumer }, worker.consumer), badge(state, label)),
    worker.holding_why && h("p", { class: "box warn" }, worker.holding_why),
    slotMeter(worker.in_flight, worker.max_inflight),
    h(
      "dl",
      { class: "facts" },
      fact("Heartbeat", timeAgo(worker.seen_ms), h("span", { class: "dim" }, ` · every ${count(worker.every_s)} s`)),
      fact("Uptime", duration(uptimeMs)),
      fact("Host", `${worker.host} · pid ${worker.pid} · ${worker.version}`),
      fact("Memory", bytes(worker.rss_bytes), h("span", { class: "dim" }, host.available_bytes ? ` · ${bytes(host.available_bytes)} free on the host` : "")),
      host.temperature_c !== null && host.temperature_c !== undefined && fact("Temperature", `${Math.round(host.temperature_c)} °C`),
      host.gpu_load !== null && host.gpu_load !== undefined && fact("GPU", `${Math.round(host.gpu_load * 100)} %`),
      fact("Event loop lag", duration(worker.loop_lag_s * 1000)),
      fact("CPU", uptimeMs > 0 ? `${Math.round((100_000 * worker.cpu_s) / uptimeMs)} % on average` : "–"),
      worker.model && worker.model.state !== "absent" && fact("Model", `${worker.model.name || "?"} · ${worker.model.state}`, worker.model.reason && h("div", { class: "dim" }, worker.model.reason)),
      fact("Tasks", worker.tasks.join(", ")),
      fact("Jobs", countersText(worker.tally)),
    ),
    worker.running.length > 0 && runningJobs(worker.running),
  );
}

function slotMeter(used, total) {
  const bar = h("div", { class: "bar" });
  bar.style.width = `${total ? Math.min(100, (100 * used) / total) : 0}%`;
  return h("div", { class: "meter" }, h("div", { class: "track", role: "img", "aria-label": `${used} of ${plural(total, "slot")} busy` }, bar), h("span", { "aria-hidden": "true" }, `${used} / ${total}`));
}

function countersText(tasks) {
  const sum = (name) => Object.values(tasks ?? {}).reduce((n, task) => n + (task[name] ?? 0), 0);
  const parts = [["succeeded", "done"], ["failed", "failed"], ["canceled", "canceled"], ["retried", "retried"]];
  return parts.filter(([name], i) => !i || sum(name)).map(([name, label]) => `${count(sum(name))} ${label}`).join(" · ");
}

const MAX_JOBS_SHOWN = 8;

function runningJobs(jobs) {
  return h(
    "ul",
    { class: "plain" },
    jobs.slice(0, MAX_JOBS_SHOWN).map((job) => h("li", null, h("a", { href: url`/ui/jobs/${job.job_id}`, dataset: { nav: "" } }, h("code", null, shortId(job.job_id))),
      h("span", { class: "dim" }, [job.task, job.attempt > 1 && `attempt ${job.attempt}`].filter(Boolean).join(" · ")), timeAgo(job.since_ms))),
    jobs.length > MAX_JOBS_SHOWN && h("li", { class: "dim" }, `and ${jobs.length - MAX_JOBS_SHOWN} more`),
  );
}
