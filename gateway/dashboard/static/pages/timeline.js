// What a job did with its time: waiting, attempts, pauses between them.

import { h, replace } from "../dom.js";
import { clock, duration, visible } from "../format.js";

/** Phases of a job, from its events: {name, kind, from, to (null: goes on), note}. */
export class Phases {
  list = [];
  ended = false;

  add({ type, ts, data }) {
    const now = this.list.at(-1);
    if (type === "queued") this.#open("Waiting", "wait", ts);
    else if (type === "scheduled") this.#schedule(ts, Number(data?.run_at_ms) || ts);
    else if (type === "running") this.#open(data?.attempt ? `Attempt ${data.attempt}` : "Running", "run", ts);
    else if (type === "retry") {
      this.#close(ts, "bad", reason(data));
      this.#open("Pause", "wait", ts, data?.max_attempts ? `attempt ${data.attempt} of ${data.max_attempts} failed` : "");
    } else if (type === "released") {
      this.#close(ts, "warn", "handed back by a stopping worker");
      this.#open("Waiting", "wait", ts);
    } else if (type === "canceling" && now) now.note ||= "asked to stop";
    else if (type === "message" && now?.kind === "run") now.firstOutput ??= ts;
    else if (type === "done" || type === "error" || type === "canceled") {
      // What ends while it waits was no attempt that went well or badly.
      const kind = now?.kind === "run" && { done: "good", error: "bad", canceled: "warn" }[type];
      const note = { done: "", error: reason(data), canceled: `canceled ${visible(data?.reason ?? "")}` }[type];
      this.#close(ts, kind, note);
      this.ended = true;
    }
  }

  #schedule(ts, due) {
    if (this.list.at(-1)?.from === ts) this.list.pop(); // it did not wait for anybody before
    this.#open("Scheduled", "wait", ts, `due at ${clock(due)}`);
    this.list.at(-1).due = due;
  }

  #open(name, kind, from, note = "") {
    const now = this.list.at(-1);
    this.#close(from);
    // Nothing is said when a job's time has come; it waits from then on.
    if (now?.due && now.due < from) {
      now.to = now.due;
      this.list.push({ name: "Waiting", kind: "wait", from: now.due, to: from, note: "" });
    }
    this.list.push({ name, kind, from, to: null, note });
  }

  #close(to, kind, note) {
    const now = this.list.at(-1);
    if (!now || now.to !== null) return;
    now.to = to;
    if (kind) now.kind = kind;
    if (note) now.note = note;
  }
}

const reason = (data) => visible([data?.kind, data?.message].filter(Boolean).join(": ")).slice(0, 160);

/** The phases drawn; call `show()` after each change. It moves on by itself while a phase is open. */
export function timeline(phases) {
  const node = h("ol", { class: "timeline", "aria-label": "Timeline" });

  function show() {
    const list = phases.list;
    const begin = list[0]?.from ?? 0;
    const now = phases.ended ? list.at(-1)?.to : Math.max(Date.now(), ...list.map((p) => p.to ?? p.from));
    const whole = Math.max(1, now - begin);
    replace(
      node,
      list.map((phase) => {
        const to = phase.to ?? now;
        const bar = h("span", { class: "bar" });
        bar.style.left = `${((phase.from - begin) / whole) * 100}%`;
        bar.style.width = `${((to - phase.from) / whole) * 100}%`;
        const words = [phase.note, phase.firstOutput && `first output after ${duration(phase.firstOutput - phase.from)}`];
        return h(
          "li",
          { dataset: { kind: phase.kind, open: phase.to === null } },
          h("span", { class: "name", title: clock(phase.from, { date: true, fraction: true }) }, phase.name),
          h("span", { class: "lane", "aria-hidden": "true" }, bar),
          h("span", { class: "took" }, duration(to - phase.from)),
          h("span", { class: "note" }, words.filter(Boolean).join(" · ")),
        );
      }),
    );
  }

  const timer = setInterval(() => !phases.ended && phases.list.length && !document.hidden && show(), 500);
  return { node, show, destroy: () => clearInterval(timer) };
}
