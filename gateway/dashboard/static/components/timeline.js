// Timeline of a job: waiting, attempts, and the delays between them.

import { h, replace } from "../lib/dom.js";
import { clock, duration, printable } from "../lib/format.js";

/** Phases of a job, derived from its events: {name, kind, from, to (null: still open), note}. */
export class Phases {
  list = [];
  ended = false;

  add({ type, ts, data }) {
    const current = this.list.at(-1);
    if (type === "queued") this.#open("Waiting", "wait", ts);
    else if (type === "scheduled") this.#schedule(ts, Number(data?.run_at_ms) || ts);
    else if (type === "running") this.#open(data?.attempt ? `Attempt ${data.attempt}` : "Running", "run", ts);
    else if (type === "retry") {
      this.#close(ts, "bad", errorText(data));
      this.#open("Waiting to retry", "wait", ts, data?.max_attempts ? `attempt ${data.attempt} of ${data.max_attempts} failed` : "");
    } else if (type === "released") {
      this.#close(ts, "warn", "released by a stopping worker");
      this.#open("Waiting", "wait", ts);
    } else if (type === "canceling" && current) current.note ||= "cancel requested";
    else if (type === "message" && current?.kind === "run") current.firstOutput ??= ts;
    else if (type === "done" || type === "error" || type === "canceled") {
      // A job that ends while it waits has no attempt to mark as succeeded or failed.
      const kind = current?.kind === "run" && { done: "good", error: "bad", canceled: "warn" }[type];
      const note = { done: "", error: errorText(data), canceled: `canceled ${printable(data?.reason ?? "")}` }[type];
      this.#close(ts, kind, note);
      this.ended = true;
    }
  }

  #schedule(ts, due) {
    if (this.list.at(-1)?.from === ts) this.list.pop(); // accepted and scheduled at the same time: it was never waiting
    this.#open("Scheduled", "wait", ts, `due at ${clock(due)}`);
    this.list.at(-1).due = due;
  }

  #open(name, kind, from, note = "") {
    const current = this.list.at(-1);
    this.#close(from);
    // No event is published when a scheduled job becomes due; it waits for a worker from then on.
    if (current?.due && current.due < from) {
      current.to = current.due;
      this.list.push({ name: "Waiting", kind: "wait", from: current.due, to: from, note: "" });
    }
    this.list.push({ name, kind, from, to: null, note });
  }

  #close(to, kind, note) {
    const current = this.list.at(-1);
    if (!current || current.to !== null) return;
    current.to = to;
    if (kind) current.kind = kind;
    if (note) current.note = note;
  }
}

const errorText = (data) => printable([data?.kind, data?.message].filter(Boolean).join(": ")).slice(0, 160);

/** Draws phases; call `show()` after each change. An open phase grows on its own. */
export function timeline(phases) {
  const node = h("ol", { class: "timeline", "aria-label": "Timeline" });

  function show() {
    const list = phases.list;
    const start = list[0]?.from ?? 0;
    const end = phases.ended ? list.at(-1)?.to : Math.max(Date.now(), ...list.map((p) => p.to ?? p.from));
    const total = Math.max(1, end - start);
    replace(
      node,
      list.map((phase) => {
        const to = phase.to ?? end;
        const bar = h("span", { class: "bar" });
        bar.style.left = `${((phase.from - start) / total) * 100}%`;
        bar.style.width = `${((to - phase.from) / total) * 100}%`;
        const notes = [phase.note, phase.firstOutput && `first output after ${duration(phase.firstOutput - phase.from)}`];
        return h(
          "li",
          { dataset: { kind: phase.kind, open: phase.to === null } },
          h("span", { class: "name", title: clock(phase.from, { date: true, fraction: true }) }, phase.name),
          h("span", { class: "track", "aria-hidden": "true" }, bar),
          h("span", { class: "took" }, duration(to - phase.from)),
          h("span", { class: "note" }, notes.filter(Boolean).join(" · ")),
        );
      }),
    );
  }

  const timer = setInterval(() => !phases.ended && phases.list.length && !document.hidden && show(), 500);
  return { node, show, destroy: () => clearInterval(timer) };
}
