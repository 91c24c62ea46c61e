// BullMQ queues: counts, live events, adding and finding a job.

import { del, get, getText, post, stream, url } from "../lib/api.js";
import { h, replace, replaceKeepingFocus } from "../lib/dom.js";
import { clock, count } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { actionButton, badge, confirmDialog, errorBox, field, formCard, jsonTree, pageHead, runAction } from "../components/ui.js";

const MAX_EVENTS = 200;
const EVENT_TYPES = ["added", "waiting", "active", "delayed", "prioritized", "waiting-children", "progress", "completed", "failed", "stalled", "removed", "retry", "retries-exhausted", "drained", "paused", "resumed", "cleaned", "duplicated", "deduplicated"];

export default async function bullmq({ query, setQuery, session }) {
  const queueList = h("div", { class: "grid" });
  const details = h("div", { class: "stack" });
  let selected = query.get("queue") ?? "";
  let source = null;

  async function load() {
    const { bullmq: queues } = await get("/v1/queues");
    if (!source && queues.length) openQueue(queues.find(({ name }) => name === selected) ?? queues[0]);
    replaceKeepingFocus(queueList, queues.length ? queues.map((queue) =>
      h("button", { class: "card queue", dataset: { nav: "" }, "aria-pressed": String(queue.name === selected), onClick: () => (openQueue(queue), load()) },
        h("strong", null, queue.name),
        h("span", { class: "row small" }, Object.entries(queue.counts ?? {}).map(([state, n]) => h("span", null, h("b", null, count(n)), ` ${state}`)))))
      : h("p", { class: "empty" }, "No queues. Set ", h("code", null, "BULLMQ_ADD_QUEUES"), " to add some."));
  }

  function openQueue({ name }) {
    selected = name;
    setQuery({ queue: name });
    source?.close();
    const path = url`/v1/bullmq/${name}`;
    const eventList = h("ol", { class: "event-list" });
    const result = h("div");
    const idInput = h("input", { placeholder: "Job id", "aria-label": "Job id", dataset: { search: "" } });
    const findJob = (id) => {
      setQuery({ job: id });
      return showJob(result, `${path}${url`/jobs/${id}`}`);
    };
    source = stream(`${path}/events`, { events: Object.fromEntries(EVENT_TYPES.map((type) => [type, ({ ts, data: { jobId, ...rest } }) => {
      eventList.prepend(h("li", null, h("time", { class: "dim" }, clock(ts)), badge(type), jobId && actionButton(jobId, () => findJob(jobId), { class: "link" }),
        h("span", { class: "dim" }, Object.keys(rest).length > 0 && JSON.stringify(rest).slice(0, 200))));
      if (eventList.childElementCount > MAX_EVENTS) eventList.lastChild.remove();
    }])) });
    replace(details, h("div", { class: "two-columns" },
      h("section", { class: "card stack" }, h("h2", null, "Find a job"),
        h("form", { class: "row", onSubmit: (event) => (event.preventDefault(), idInput.value && findJob(idInput.value)) }, idInput, h("button", null, "Find")), result),
      session.can("submit") && addForm(name, path, findJob)),
    h("section", { class: "card" }, h("h2", null, "Live events"), eventList));
    if (query.get("job")) findJob(query.get("job"));
    query.delete("job");
  }

  async function showJob(node, path) {
    try {
      const raw = await getText(path);
      const job = JSON.parse(raw);
      replace(node, h("div", { class: "stack" },
        h("div", { class: "row" }, h("strong", null, job.name), h("code", null, job.id), badge(job.state), actionButton("Refresh", () => showJob(node, path), { class: "small" }),
          session.can("cancel") && actionButton(job.state === "active" ? "Cancel" : "Remove", (button) => remove(button, node, path), { class: "small danger" })),
        job.failedReason && h("div", { class: "box error" }, job.failedReason), jsonTree(raw, { open: 1 })));
    } catch (error) {
      replace(node, errorBox(error));
    }
  }

  async function remove(button, node, path) {
    if (!(await confirmDialog({ title: "Remove the job?", text: "Its children are removed as well. A running job is canceled.", yes: "Remove" }))) return;
    const response = await runAction(button, del(path));
    if (response) replace(node, response.outcome);
  }

  function addForm(queue, path, onAdded) {
    const name = h("input", { value: queue, required: true });
    const data = h("textarea", { rows: 4, spellcheck: "false", value: "{}" });
    const opts = h("textarea", { rows: 2, spellcheck: "false", value: '{"attempts": 3}' });
    const submit = async () => {
      for (const { value } of [data, opts]) JSON.parse(value);
      // Sent as typed: JSON.parse would round large numbers.
      const body = `{"name":${JSON.stringify(name.value)},"data":${data.value},"opts":${opts.value}}`;
      const { id } = await post(`${path}/jobs`, new Blob([body], { type: "application/json" }));
      await onAdded(id);
      await load();
    };
    return formCard("Add a job", "Add", submit, field("Name", name), field("Data (JSON)", data), field("Options (JSON)", opts));
  }

  await load();
  const stop = poll(load);
  return {
    title: "BullMQ",
    node: h("div", { class: "stack" }, pageHead("BullMQ queues"), queueList, details),
    destroy() {
      source?.close();
      stop();
    },
  };
}
