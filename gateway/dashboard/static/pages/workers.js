// Who works, on what.

import { get, url } from "../api.js";
import { h, replace } from "../dom.js";
import { ago, bytes, count, duration, short } from "../format.js";
import { live } from "../live.js";
import { badge, errorBox, pageHead, when } from "../ui.js";

const EVERY_MS = 2500;

export default async function page() {
  const list = h("div", { class: "stack" });
  const sum = h("p", { class: "dim" });
  let gone = false;
  let last = 0;

  async function load() {
    last = Date.now();
    try {
      const { workers } = await get("/v1/workers");
      if (gone) return;
      show(workers);
    } catch (error) {
      if (!gone) replace(list, errorBox(error));
    }
  }
  // The pulse of the stream: it rests when the page does.
  const offs = [live.on("stats", () => Date.now() - last >= EVERY_MS && load()), live.on("again", load)];

  function show(workers) {
    const busyNow = workers.reduce((n, worker) => n + worker.in_flight, 0);
    const slots = workers.reduce((n, worker) => n + worker.max_inflight, 0);
    replace(sum, workers.length ? `${count(busyNow)} of ${count(slots)} places are busy.` : null);
    if (document.activeElement && list.contains(document.activeElement)) {
      const at = document.activeElement.getAttribute("href");
      replace(list, cards(workers));
      [...list.querySelectorAll("a")].find((link) => link.getAttribute("href") === at)?.focus();
      return;
    }
    replace(list, cards(workers));
  }

  await load();
  return { title: "Workers", node: h("div", null, pageHead("Workers", sum), list), destroy: () => ((gone = true), offs.forEach((off) => off())) };
}

function cards(workers) {
  if (!workers.length) {
    return h("p", { class: "card empty" }, "No worker lives. Jobs are accepted and wait. Start one with ", h("code", null, "python -m worker"), ".");
  }
  return h("div", { class: "grid workers" }, workers.map(card));
}

function card(worker) {
  const late = Date.now() - worker.seen_ms > 2000 * worker.every_s;
  const state = worker.draining ? "draining" : worker.holding ? "holding" : late ? "stale" : worker.in_flight ? "running" : "up";
  const words = { draining: "draining", holding: "holding", stale: "silent", running: "working", up: "idle" }[state];
  const fact = (name, ...value) => [h("dt", null, name), h("dd", null, value)];
  const box = worker.box ?? {};
  return h(
    "article",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", { class: "clip", title: worker.consumer }, worker.consumer), badge(state, words)),
    worker.holding_why && h("p", { class: "box warn" }, worker.holding_why),
    meter(worker.in_flight, worker.max_inflight),
    h(
      "dl",
      { class: "facts" },
      fact("Heartbeat", when(worker.seen_ms), h("span", { class: "dim" }, ` · every ${count(worker.every_s)} s`)),
      fact("Up since", ago(worker.started_ms).replace(" ago", "")),
      fact("Host", `${worker.host} · pid ${worker.pid} · ${worker.version}`),
      fact("Memory", bytes(worker.rss_bytes), h("span", { class: "dim" }, box.available_bytes ? ` · ${bytes(box.available_bytes)} free there` : "")),
      box.temperature_c !== null && box.temperature_c !== undefined && fact("Temperature", `${Math.round(box.temperature_c)} °C`),
      box.gpu_load !== null && box.gpu_load !== undefined && fact("GPU", `${Math.round(box.gpu_load * 100)} %`),
      fact("Loop lag", duration(worker.loop_lag_s * 1000)),
      fact("Processor", `${duration(worker.cpu_s * 1000)} in all`),
      worker.model && worker.model.state !== "absent" && fact("Model", `${worker.model.name || "?"} · ${worker.model.state}`, worker.model.reason && h("div", { class: "dim" }, worker.model.reason)),
      fact("Tasks", worker.tasks.join(", ")),
      fact("Ended", tally(worker.tally)),
    ),
    worker.running.length > 0 && running(worker.running),
  );
}

function meter(used, most) {
  const bar = h("div", { class: "bar" });
  bar.style.width = `${most ? Math.min(100, (100 * used) / most) : 0}%`;
  return h("div", { class: "meter" }, h("div", { class: "track", role: "img", "aria-label": `${used} of ${most} places are busy` }, bar), h("span", { "aria-hidden": "true" }, `${used} / ${most}`));
}

function tally(tasks) {
  const sum = (name) => Object.values(tasks ?? {}).reduce((n, task) => n + (task[name] ?? 0), 0);
  const parts = [["succeeded", "well"], ["failed", "in error"], ["canceled", "canceled"], ["retried", "tried again"]];
  return parts.filter(([name], i) => !i || sum(name)).map(([name, words]) => `${count(sum(name))} ${words}`).join(", ");
}

const MOST = 8;

function running(jobs) {
  return h(
    "ul",
    { class: "plain" },
    jobs.slice(0, MOST).map((job) => h("li", null, h("a", { href: url`/ui/jobs/${job.job_id}`, dataset: { nav: "" } }, h("code", null, short(job.job_id))),
      h("span", { class: "dim" }, [job.task, job.attempt > 1 && `attempt ${job.attempt}`].filter(Boolean).join(" · ")), when(job.since_ms))),
    jobs.length > MOST && h("li", { class: "dim" }, `and ${jobs.length - MOST} more`),
  );
}
