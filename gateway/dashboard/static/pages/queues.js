// What waits, and the way to let it wait.

import { get, post, url } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration } from "../format.js";
import { live } from "../live.js";
import { act, badge, errorBox, field, pageHead, table, tile, when } from "../ui.js";

const EVERY_MS = 2500;

export default async function page({ me }) {
  const shown = h("div", { class: "stack" });
  const cards = new Map();
  const bull = h("section", { class: "card", hidden: true });
  let last = 0;
  let gone = false;

  async function load() {
    last = Date.now();
    try {
      const { queues, bullmq } = await get("/v1/queues");
      if (gone) return;
      for (const queue of queues) {
        if (!cards.has(queue.name)) cards.set(queue.name, card(queue.name, me, load));
        cards.get(queue.name).set(queue);
      }
      if (shown.firstChild?.classList.contains("error") || !shown.firstChild) replace(shown, [...cards.values()].map(({ node }) => node), bull);
      bull.hidden = !bullmq.length;
      replace(bull, h("div", { class: "card-head" }, h("h2", null, "BullMQ"), h("a", { href: "/ui/bullmq" }, "Open")), bullTable(bullmq));
    } catch (error) {
      if (!gone) replace(shown, errorBox(error));
    }
  }
  // The pulse of the stream: it rests when the page does.
  const offs = [live.on("stats", () => Date.now() - last >= EVERY_MS && load()), live.on("again", load)];
  await load();
  return { title: "Queues", node: h("div", null, pageHead("Queues"), shown), destroy: () => ((gone = true), offs.forEach((off) => off())) };
}

/** The job queue; made once and changed in place, so that nothing jumps under a finger. */
function card(name, me, load) {
  const state = h("span");
  const pause = h("p", { class: "box warn", hidden: true });
  const tasks = h("div");
  const partitions = h("div");
  const button = me.may("admin") ? h("button", { type: "button" }) : null;
  const tiles = {
    depth: tile("Waiting", { hint: "No worker was given them yet" }),
    pending: tile("With workers", { href: "/ui/workers" }),
    oldest: tile("Oldest", { hint: "How long the oldest has waited" }),
    rate: tile("Ends", { hint: "Jobs that end, smoothed" }),
    scheduled: tile("Scheduled", { hint: "Jobs that wait for their time" }),
    dead: tile("Dead letters", { href: me.reads("all") ? "/ui/dead" : null }),
    limit: tile("Room", { hint: "Until new jobs are refused with 429" }),
    left: tile("Empty in", { hint: "At this rate, if nothing comes" }),
  };
  let paused = false;
  button?.addEventListener("click", async () => {
    const done = paused ? await act(button, () => post(url`/v1/queues/${name}/resume`), "It goes on.") : await ask(name, button);
    if (done) load();
  });
  return {
    node: h(
      "section",
      { class: "card stack", "aria-label": name },
      h("div", { class: "card-head" }, h("div", { class: "row" }, h("h2", null, name), state), button),
      pause,
      h("div", { class: "tiles" }, Object.values(tiles).map(({ node }) => node)),
      tasks,
      partitions,
    ),
    set(queue) {
      paused = Boolean(queue.paused);
      replace(state, badge(paused ? "paused" : "ok", paused ? "paused" : "flowing"));
      if (button) button.textContent = paused ? "Resume" : "Pause…";
      pause.hidden = !paused;
      if (paused) replace(pause, "Workers take nothing new. Paused ", when(queue.paused.since_ms), ` by ${queue.paused.by}`, queue.paused.why ? `: ${queue.paused.why}` : ".");
      const backlog = (queue.depth ?? 0) + (queue.pending ?? 0);
      const room = queue.backlog_limit - backlog;
      tiles.depth.set(count(queue.depth), queue.depth ? "for a worker" : "nothing waits");
      tiles.pending.set(count(queue.pending), "running, or just read");
      tiles.oldest.set(duration(queue.oldest_age_ms), "on the queue", queue.oldest_age_ms > 60_000 ? "warn" : "");
      tiles.rate.set(`${count(queue.drain_rate_per_s)}/s`, "lately");
      tiles.scheduled.set(count(queue.scheduled), "for later");
      tiles.dead.set(count(queue.dead_letters), queue.dead_letters ? "have a look" : "none", queue.dead_letters ? "warn" : "");
      tiles.limit.set(count(Math.max(0, room)), `of ${count(queue.backlog_limit)}`, room <= 0 ? "bad" : room < queue.backlog_limit / 10 ? "warn" : "");
      tiles.left.set(backlog && queue.drain_rate_per_s > 0.01 ? duration((1000 * backlog) / queue.drain_rate_per_s) : backlog ? "–" : "now", "at this rate");
      const waiting = Object.entries(queue.waiting ?? {}).filter(([, { number }]) => number);
      replace(tasks, waiting.length > 0 && table({
        caption: "Read, and waiting for a place of their task",
        rows: waiting,
        columns: [
          { name: "Task", cell: ([task]) => task },
          { name: "Waiting", align: "right", cell: ([, { number }]) => count(number) },
          { name: "Oldest", align: "right", cell: ([, { oldest_age_ms: age }]) => duration(age) },
        ],
      }));
      replace(partitions, queue.partitions && partTable(queue.partitions));
    },
  };
}

/** Where the queue is divided: each part, and which of them does not answer. */
function partTable(parts) {
  return table({
    caption: `${count(parts.length)} partitions`,
    rows: parts,
    columns: [
      { name: "Partition", cell: ({ partition, trouble }) => (trouble ? h("span", { title: trouble }, `${partition} `, badge("fail", "away")) : partition) },
      { name: "Waiting", align: "right", cell: ({ depth }) => count(depth) },
      { name: "With workers", align: "right", cell: ({ pending }) => count(pending) },
      { name: "Scheduled", align: "right", cell: ({ scheduled }) => count(scheduled) },
      { name: "Dead letters", align: "right", cell: ({ dead_letters: dead }) => count(dead) },
    ],
  });
}

/** Why it is paused is worth a line; returns the answer, or nothing. */
function ask(name, button) {
  return new Promise((resolve) => {
    const why = h("input", { maxlength: 500, autocomplete: "off", placeholder: "the model server is replaced", autofocus: true });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "pause-title", onClose: async () => {
        dialog.remove();
        if (dialog.returnValue !== "yes") return resolve(undefined);
        return resolve(await act(button, () => post(url`/v1/queues/${name}/pause`, why.value.trim() ? { why: why.value.trim() } : {}), "Paused."));
      } },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "pause-title" }, `Pause ${name}?`),
        h("p", null, "Workers take nothing new. What runs goes on, and what comes is accepted and waits. It lasts until somebody resumes it, over restarts too."),
        field("Why", why, "For whoever wonders. May be empty."),
        h("div", { class: "actions" }, h("button", { value: "no", type: "button", onClick: () => dialog.close("no") }, "Cancel"), h("button", { value: "yes", class: "primary" }, "Pause")),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

function bullTable(queues) {
  const places = [...new Set(queues.flatMap(({ counts }) => Object.keys(counts ?? {})))];
  return table({
    rows: queues,
    columns: [
      { name: "Queue", cell: ({ name }) => h("a", { href: `/ui/bullmq?queue=${encodeURIComponent(name)}`, dataset: { nav: "" } }, name) },
      ...places.map((place) => ({ name: place, align: "right", cell: ({ counts }) => count(counts?.[place] ?? 0) })),
    ],
  });
}
