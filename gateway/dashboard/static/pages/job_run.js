// A job as it happens: timeline, output and events, for its own page and for the playground.

import { send } from "../api.js";
import { h } from "../dom.js";
import { copyButton, jsonTree } from "../ui.js";
import { eventLog } from "./event_log.js";
import { follow } from "./follow.js";
import { output } from "./output.js";
import { Phases, timeline } from "./timeline.js";

const CHANGES = new Set(["queued", "running", "retry", "released", "canceling", "done", "error", "canceled", "gone"]);

/** `onChange(type)` where the job's own record has changed. */
export function jobRun(jobId, { onChange = () => {}, onState = () => {} } = {}) {
  const phases = new Phases();
  const times = timeline(phases);
  const said = output();
  const log = eventLog();
  let due = 0;
  let change = null;
  let step = "";
  const settle = () => {
    due = 0;
    times.show();
    if (change) onChange(change, step);
    change = null;
  };
  const line = follow(jobId, {
    onEvent(event, raw) {
      phases.add(event);
      said.add(event);
      log.add(event, raw);
      step = event.step;
      if (CHANGES.has(event.type)) change = event.type;
      due ||= requestAnimationFrame(settle);
    },
    onState,
  });
  return {
    output: card("Output", copyButton(() => said.text), said.node),
    timeline: card("Timeline", null, times.node),
    events: h("details", { class: "card events" }, h("summary", null, h("h2", null, "Events")), h("div", { class: "row" }, copyButton(() => log.text, "Copy all")), log.node),
    destroy() {
      line.close();
      times.destroy();
      cancelAnimationFrame(due);
    },
  };
}


export function card(title, beside, ...children) {
  return h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", null, title), beside), children);
}

/** JSON text in a card. */
export function jsonCard(title, source) {
  return card(title, copyButton(source), h("div", { class: "tall", role: "region", "aria-label": title, tabindex: "0" }, jsonTree(source)));
}

/** Submit JSON text as it is: numbers beyond a browser's arithmetic stay what they are. */
export async function submit(task, payload, more = {}, key = newKey()) {
  const rest = Object.entries(more).map(([name, value]) => `,${JSON.stringify(name)}:${JSON.stringify(value)}`);
  const body = `{"task":${JSON.stringify(task)},"payload":${payload}${rest.join("")}}`;
  const blob = new Blob([body], { type: "application/json" });
  const answer = await send("POST", "/v1/jobs", blob, { headers: { "Idempotency-Key": key } });
  return (await answer.json()).job_id;
}

/** crypto.randomUUID is not there without TLS. */
export function newKey() {
  return "ui-" + [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
