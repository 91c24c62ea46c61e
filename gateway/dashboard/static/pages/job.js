// One job: what it was asked, what it does, what came of it.

import { post, text, url } from "../api.js";
import { h, replace } from "../dom.js";
import { clock, duration, visible } from "../format.js";
import { act, badge, confirmDialog, copyButton, jsonTree, members, pageHead, toast, when } from "../ui.js";
import { card, jobRun, jsonCard, submit } from "./job_run.js";
import { snippetBox } from "./snippets.js";

const ENDED = new Set(["done", "error", "canceled"]);

export default async function page({ params, navigate, me }) {
  const jobId = params.id;
  const path = url`/v1/jobs/${jobId}`;
  const state = h("span");
  const actions = h("div", { class: "actions" });
  const facts = h("dl", { class: "facts" });
  const result = h("div", { class: "stack" });
  let job = null;
  let source = {};
  let asked = 0;
  let offeredEnded = null;

  async function load() {
    asked = 0;
    const raw = await text(path);
    job = JSON.parse(raw);
    source = members(raw);
    show();
  }

  function show() {
    const ended = ENDED.has(job.status);
    replace(state, badge(job.status));
    replace(
      facts,
      fact("Task", job.task),
      fact("Accepted", when(job.created_ts), " ", h("small", null, clock(job.created_ts, { date: true }))),
      fact(ended ? "Ended" : "Changed", when(job.updated_ts), " ", h("small", null, clock(job.updated_ts, { date: true }))),
      ended && fact("Took in all", duration(job.updated_ts - job.created_ts)),
      fact("Forgotten", ended ? when(job.updated_ts + job.ttl_s * 1000) : `${duration(job.ttl_s * 1000)} after its last change`),
    );
    if (ended !== offeredEnded) offer(ended);
    replace(
      result,
      job.error !== null && h("div", { class: "box error" }, h("p", null, h("b", null, visible(job.error?.kind ?? "error")), " ", visible(job.error?.message ?? "")), jsonTree(source.error, { open: 0 })),
      job.result !== null && jsonCard("Result", source.result),
    );
  }

  // Only when there are others to offer: a button that is replaced while it is pressed does nothing.
  function offer(ended) {
    offeredEnded = ended;
    replace(
      actions,
      !ended && me.may("cancel") && h("button", { type: "button", class: "danger", onClick: cancel }, "Cancel"),
      me.may("submit") && h("button", { type: "button", onClick: again, title: "A new job with the same payload" }, "Retry as new"),
      me.may("submit") && h("a", { class: "button", href: `/ui/playground?from=${encodeURIComponent(jobId)}` }, "Clone and edit"),
    );
  }

  function refresh() {
    clearTimeout(asked);
    asked = setTimeout(() => load().catch((error) => (error.status === 404 ? replace(state, badge("gone", "forgotten")) : toast(error.detail, "bad"))), 50);
  }

  async function cancel(event) {
    const button = event.currentTarget;
    if (!(await confirmDialog({ title: "Cancel this job?", text: "What it has done so far is kept.", yes: "Cancel the job" }))) return;
    const answer = await act(button, () => post(`${path}/cancel`));
    if (answer?.canceling) toast("Its worker was asked to stop.");
    refresh();
  }

  async function again(event) {
    const made = await act(event.currentTarget, () => submit(job.task, source.payload, { ttl_s: job.ttl_s }));
    if (made) navigate(url`/ui/jobs/${made}`);
  }

  await load();
  const run = jobRun(jobId, { onChange: refresh });
  return {
    title: `Job ${jobId.slice(0, 8)}`,
    node: h(
      "div",
      { class: "stack job" },
      h("div", null, h("a", { href: "/ui/jobs", class: "back" }, "Jobs"), pageHead(["Job ", h("code", null, jobId)], state, copyButton(jobId, "Copy id"), actions)),
      h("div", { class: "two" }, card("Facts", null, facts), run.timeline),
      run.output,
      result,
      jsonCard("Payload", source.payload),
      run.events,
      card("From a terminal", null, snippetBox({ jobId, task: job.task, payload: source.payload, key: me.keyId })),
    ),
    destroy() {
      clearTimeout(asked);
      run.destroy();
    },
  };
}

const fact = (name, ...words) => [h("dt", null, name), h("dd", null, words)];
