// Queues: backlog, pause and resume, partitions.

import { get, post, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { count, duration, plural } from "../lib/format.js";
import { live } from "../lib/live.js";
import { badge, errorBox, field, pageHead, runAction, table, tile, timeAgo } from "../components/ui.js";

const REFRESH_MS = 2500;

export default async function page({ session }) {
  const content = h("div", { class: "stack" });
  const cards = new Map();
  const bullmqCard = h("section", { class: "card", hidden: true });
  let loadedAt = 0;
  let destroyed = false;

  async function load() {
    loadedAt = Date.now();
    try {
      const { queues, bullmq } = await get("/v1/queues");
      if (destroyed) return;
      for (const queue of queues) {
        if (!cards.has(queue.name)) cards.set(queue.name, queueCard(queue.name, session, load));
        cards.get(queue.name).set(queue);
      }
      if (content.firstChild?.classList.contains("error") || !content.firstChild) replace(content, [...cards.values()].map(({ node }) => node), bullmqCard);
      bullmqCard.hidden = !bullmq.length;
      replace(bullmqCard, h("div", { class: "card-head" }, h("h2", null, "BullMQ"), h("a", { href: "/ui/bullmq" }, "Open")), bullmqTable(bullmq));
    } catch (error) {
      if (!destroyed) replace(content, errorBox(error));
    }
  }
  // Loads with the events of the stream, so that it stops when the stream is paused.
  const unsubscribers = [live.on("stats", () => Date.now() - loadedAt >= REFRESH_MS && load()), live.on("resync", load)];
  await load();
  return { title: "Queues", node: h("div", null, pageHead("Queues"), content), destroy: () => ((destroyed = true), unsubscribers.forEach((unsubscribe) => unsubscribe())) };
}

/** Card of a queue; created once and updated in place, so that buttons do not move while pressed. */
function queueCard(name, session, load) {
  const state = h("span");
  const pauseNote = h("p", { class: "box warn", hidden: true });
  const tasks = h("div");
  const partitions = h("div");
  const button = session.can("admin") ? h("button", { type: "button" }) : null;
  const tiles = {
    depth: tile("Waiting", { hint: "Jobs not yet delivered to a worker" }),
    pending: tile("In progress", { href: "/ui/workers", hint: "Jobs delivered to a worker" }),
    oldest: tile("Oldest", { hint: "Waiting time of the oldest job" }),
    rate: tile("Finished", { hint: "Jobs finished per second, smoothed" }),
    scheduled: tile("Scheduled", { hint: "Jobs that are not due yet" }),
    dead: tile("Dead letters", { href: session.canRead("all") ? "/ui/dead" : null }),
    limit: tile("Free capacity", { hint: "Jobs until new ones are rejected with 429" }),
    left: tile("Empty in", { hint: "Time to finish the waiting jobs at the current rate" }),
  };
  let paused = false;
  button?.addEventListener("click", async () => {
    const changed = paused ? await runAction(button, () => post(url`/v1/queues/${name}/resume`), "Resumed.") : await askAndPause(name, button);
    if (changed) load();
  });
  return {
    node: h(
      "section",
      { class: "card stack", "aria-label": name },
      h("div", { class: "card-head" }, h("div", { class: "row" }, h("h2", null, name), state), button),
      pauseNote,
      h("div", { class: "tiles" }, Object.values(tiles).map(({ node }) => node)),
      tasks,
      partitions,
    ),
    set(queue) {
      paused = Boolean(queue.paused);
      replace(state, badge(paused ? "paused" : "ok", paused ? "paused" : "active"));
      if (button) button.textContent = paused ? "Resume" : "Pause…";
      pauseNote.hidden = !paused;
      if (paused) replace(pauseNote, "Workers take no new jobs. Paused ", timeAgo(queue.paused.since_ms), ` by ${queue.paused.by}`, queue.paused.why ? `: ${queue.paused.why}` : ".");
      const backlog = (queue.depth ?? 0) + (queue.pending ?? 0);
      const remaining = queue.backlog_limit - backlog;
      tiles.depth.set(count(queue.depth), queue.depth ? "for a worker" : "queue is empty");
      tiles.pending.set(count(queue.pending), "with workers");
      tiles.oldest.set(duration(queue.oldest_age_ms), "in the queue", queue.oldest_age_ms > 60_000 ? "warn" : "");
      tiles.rate.set(`${count(queue.drain_rate_per_s)}/s`, "recent average");
      tiles.scheduled.set(count(queue.scheduled), "not due yet");
      tiles.dead.set(count(queue.dead_letters), queue.dead_letters ? "to review" : "none", queue.dead_letters ? "warn" : "");
      tiles.limit.set(count(Math.max(0, remaining)), `of ${count(queue.backlog_limit)}`, remaining <= 0 ? "bad" : remaining < queue.backlog_limit / 10 ? "warn" : "");
      const flowing = !paused && queue.drain_rate_per_s > 0.01;
      tiles.left.set(!queue.depth ? "now" : flowing ? duration((1000 * queue.depth) / queue.drain_rate_per_s) : "–", !queue.depth ? "no jobs waiting" : paused ? "paused" : "at this rate");
      const waiting = Object.entries(queue.waiting ?? {}).filter(([, { number }]) => number);
      replace(tasks, waiting.length > 0 && table({
        caption: "Delivered to a worker, waiting for a slot of their task",
        rows: waiting,
        columns: [
          { name: "Task", cell: ([task]) => task },
          { name: "Waiting", align: "right", cell: ([, { number }]) => count(number) },
          { name: "Oldest", align: "right", cell: ([, { oldest_age_ms: age }]) => duration(age) },
        ],
      }));
      replace(partitions, queue.partitions && partitionTable(queue.partitions));
    },
  };
}

/** Partitions of a queue, and which of them are unreachable. */
function partitionTable(partitions) {
  return table({
    caption: plural(partitions.length, "partition"),
    rows: partitions,
    columns: [
      { name: "Partition", cell: ({ partition, trouble }) => (trouble ? h("span", { title: trouble }, `${partition} `, badge("fail", "unreachable")) : partition) },
      { name: "Waiting", align: "right", cell: ({ depth }) => count(depth) },
      { name: "In progress", align: "right", cell: ({ pending }) => count(pending) },
      { name: "Scheduled", align: "right", cell: ({ scheduled }) => count(scheduled) },
      { name: "Dead letters", align: "right", cell: ({ dead_letters: dead }) => count(dead) },
    ],
  });
}

/** Dialog that asks for a reason and pauses the queue; resolves to the response, or undefined. */
function askAndPause(name, button) {
  return new Promise((resolve) => {
    const reason = h("input", { maxlength: 500, autocomplete: "off", placeholder: "model server maintenance", autofocus: true });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "pause-title", onClose: async () => {
        dialog.remove();
        if (dialog.returnValue !== "yes") return resolve(undefined);
        return resolve(await runAction(button, () => post(url`/v1/queues/${name}/pause`, reason.value.trim() ? { why: reason.value.trim() } : {}), "Paused."));
      } },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "pause-title" }, `Pause ${name}?`),
        h("p", null, "Workers take no new jobs. Running jobs continue; new jobs are accepted and wait. The pause lasts until the queue is resumed, also across restarts."),
        field("Reason (optional)", reason),
        h("div", { class: "actions" }, h("button", { value: "no", type: "button", onClick: () => dialog.close("no") }, "Cancel"), h("button", { value: "yes", class: "primary" }, "Pause")),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

function bullmqTable(queues) {
  const states = [...new Set(queues.flatMap(({ counts }) => Object.keys(counts ?? {})))];
  return table({
    rows: queues,
    columns: [
      { name: "Queue", cell: ({ name }) => h("a", { href: `/ui/bullmq?queue=${encodeURIComponent(name)}`, dataset: { nav: "" } }, name) },
      ...states.map((state) => ({ name: state, align: "right", cell: ({ counts }) => count(counts?.[state] ?? 0) })),
    ],
  });
}
