// One job: facts, live output, result, payload, events.

import { getText, post, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { clock, duration, printable } from "../../lib/format.js";
import { snippetBox } from "../../components/snippets.js";
import { badge, confirmDialog, copyButton, jsonTree, members, pageHead, runAction, timeAgo, toast } from "../../components/ui.js";
import { card, jobRun, jsonCard, submit } from "./job_run.js";

const ENDED = new Set(["done", "error", "canceled"]);

export default async function page({ params, navigate, session }) {
  const jobId = params.id;
  const path = url`/v1/jobs/${jobId}`;
  const statusNode = h("span");
  const actions = h("div", { class: "actions" });
  const facts = h("dl", { class: "facts" });
  const result = h("div", { class: "stack" });
  let job = null;
  let source = {};
  let timer = 0;
  let actionsForEnded = null;

  async function load() {
    timer = 0;
    const raw = await getText(path);
    job = JSON.parse(raw);
    source = members(raw);
    show();
  }

  function show() {
    const ended = ENDED.has(job.status);
    replace(statusNode, badge(job.status));
    replace(
      facts,
      fact("Task", job.task),
      fact("Accepted", timeAgo(job.created_ts), " ", h("small", null, clock(job.created_ts, { date: true }))),
      fact(ended ? "Finished" : "Updated", timeAgo(job.updated_ts), " ", h("small", null, clock(job.updated_ts, { date: true }))),
      ended && fact("Total time", duration(job.updated_ts - job.created_ts)),
      fact("Expires", ended ? timeAgo(job.updated_ts + job.ttl_s * 1000) : `${duration(job.ttl_s * 1000)} after its last change`),
    );
    if (ended !== actionsForEnded) showActions(ended);
    replace(
      result,
      job.error !== null && h("div", { class: "box error" }, h("p", null, h("b", null, printable(job.error?.kind ?? "error")), " ", printable(job.error?.message ?? "")), jsonTree(source.error, { open: 0 })),
      job.result !== null && jsonCard("Result", source.result),
    );
  }

  // Only when the set of buttons changes: a button that is replaced while it is pressed gets no click.
  function showActions(ended) {
    actionsForEnded = ended;
    replace(
      actions,
      !ended && session.can("cancel") && h("button", { type: "button", class: "danger", onClick: cancel }, "Cancel"),
      session.can("submit") && h("button", { type: "button", onClick: resubmit, title: "Submit a new job with the same payload" }, "Retry as new"),
      session.can("submit") && h("a", { class: "button", href: `/ui/playground?from=${encodeURIComponent(jobId)}` }, "Clone and edit"),
    );
  }

  function refresh() {
    clearTimeout(timer);
    timer = setTimeout(() => load().catch((error) => (error.status === 404 ? replace(statusNode, badge("gone", "expired")) : toast(error.detail, "bad"))), 50);
  }

  async function cancel(event) {
    const button = event.currentTarget;
    if (!(await confirmDialog({ title: "Cancel this job?", text: "Its output so far is kept.", yes: "Cancel job", no: "Keep running" }))) return;
    const response = await runAction(button, () => post(`${path}/cancel`));
    if (response?.canceling) toast("Cancel requested. The worker is stopping the job.");
    refresh();
  }

  async function resubmit(event) {
    const newId = await runAction(event.currentTarget, () => submit(job.task, source.payload, { ttl_s: job.ttl_s }));
    if (newId) navigate(url`/ui/jobs/${newId}`);
  }

  await load();
  const run = jobRun(jobId, { onChange: refresh });
  return {
    title: `Job ${jobId.slice(0, 8)}`,
    node: h(
      "div",
      { class: "stack job" },
      h("div", null, h("a", { href: "/ui/jobs", class: "back" }, "Jobs"), pageHead(["Job ", h("code", null, jobId)], statusNode, copyButton(jobId, "Copy id"), actions)),
      h("div", { class: "two-columns" }, card("Details", null, facts), run.timeline),
      run.output,
      result,
      jsonCard("Payload", source.payload),
      run.events,
      card("Command line", null, snippetBox({ jobId, task: job.task, payload: source.payload, key: session.keyId })),
    ),
    destroy() {
      clearTimeout(timer);
      run.destroy();
    },
  };
}

const fact = (name, ...value) => [h("dt", null, name), h("dd", null, value)];
