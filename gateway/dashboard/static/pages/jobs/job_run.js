// Live view of one job (timeline, output, events), used by its page and by the playground.

import { send } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { eventLog } from "../../components/event_log.js";
import { output } from "../../components/output.js";
import { Phases, timeline } from "../../components/timeline.js";
import { copyButton, jsonTree } from "../../components/ui.js";
import { followEvents } from "./event_stream.js";

const STATUS_TYPES = new Set(["queued", "running", "retry", "released", "canceling", "done", "error", "canceled", "gone"]);

/** `onChange(type, step)` is called after events that change the record of the job. */
export function jobRun(jobId, { onChange = () => {}, onState = () => {} } = {}) {
  const phases = new Phases();
  const timelineView = timeline(phases);
  const outputView = output();
  const eventLogView = eventLog();
  let frame = 0;
  let change = null;
  let step = "";
  const flush = () => {
    frame = 0;
    timelineView.show();
    if (change) onChange(change, step);
    change = null;
  };
  const eventStream = followEvents(jobId, {
    onEvent(event, raw) {
      phases.add(event);
      outputView.add(event);
      eventLogView.add(event, raw);
      step = event.step;
      if (STATUS_TYPES.has(event.type)) change = event.type;
      frame ||= requestAnimationFrame(flush);
    },
    onState,
  });
  return {
    output: card("Output", copyButton(() => outputView.text), outputView.node),
    timeline: card("Timeline", null, timelineView.node),
    events: h("details", { class: "card events" }, h("summary", null, h("h2", null, "Events")), h("div", { class: "row" }, copyButton(() => eventLogView.text, "Copy all")), eventLogView.node),
    destroy() {
      eventStream.close();
      timelineView.destroy();
      cancelAnimationFrame(frame);
    },
  };
}

export function card(title, action, ...children) {
  return h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", null, title), action), children);
}

/** A card with JSON text as a tree. */
export function jsonCard(title, source) {
  return card(title, copyButton(source), h("div", { class: "scroll-area", role: "region", "aria-label": title, tabindex: "0" }, jsonTree(source)));
}

/** Submit a job. The payload is JSON text, sent unchanged: JSON.parse would round large numbers. */
export async function submit(task, payload, options = {}, key = newIdempotencyKey()) {
  const fields = Object.entries(options).map(([name, value]) => `,${JSON.stringify(name)}:${JSON.stringify(value)}`);
  const body = `{"task":${JSON.stringify(task)},"payload":${payload}${fields.join("")}}`;
  const blob = new Blob([body], { type: "application/json" });
  const response = await send("POST", "/v1/jobs", blob, { headers: { "Idempotency-Key": key } });
  return (await response.json()).job_id;
}

/** A random idempotency key. crypto.randomUUID is not available without TLS. */
export function newIdempotencyKey() {
  return "ui-" + [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
