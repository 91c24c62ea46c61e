// Queues of BullMQ: what waits in them, their events as they come, adding and finding a job.

import { del, get, post, stream, text, url } from "../api.js";
import { h, replace } from "../dom.js";
import { clock, count } from "../format.js";
import { act, badge, confirmDialog, errorBox, field, jsonTree, pageHead } from "../ui.js";
import { form, often, press, steady } from "./parts.js";

const KEPT = 200;
const TYPES = ["added", "waiting", "active", "delayed", "prioritized", "waiting-children", "progress", "completed", "failed", "stalled", "removed", "retry", "retries-exhausted", "drained", "paused", "resumed", "cleaned", "duplicated", "deduplicated"];

export default async function bullmq({ query, setQuery, me }) {
  const names = h("div", { class: "grid" });
  const about = h("div", { class: "stack" });
  let chosen = query.get("queue") ?? "";
  let source = null;

  async function load() {
    const { bullmq: found } = await get("/v1/queues");
    if (!source && found.length) open(found.find(({ name }) => name === chosen) ?? found[0]);
    steady(names, found.length ? found.map((queue) =>
      h("button", { class: "card queue", dataset: { nav: "" }, "aria-pressed": String(queue.name === chosen), onClick: () => (open(queue), load()) },
        h("strong", null, queue.name),
        h("span", { class: "row small" }, Object.entries(queue.counts ?? {}).map(([place, n]) => h("span", null, h("b", null, count(n)), ` ${place}`)))))
      : h("p", { class: "empty" }, "No queue is named in ", h("code", null, "BULLMQ_ADD_QUEUES"), "."));
  }

  function open({ name }) {
    chosen = name;
    setQuery({ queue: name });
    source?.close();
    const path = url`/v1/bullmq/${name}`;
    const log = h("ol", { class: "story" });
    const one = h("div");
    const wanted = h("input", { placeholder: "Id of a job", "aria-label": "Id of a job", dataset: { search: "" } });
    const find = (id) => {
      setQuery({ job: id });
      return show(one, `${path}${url`/jobs/${id}`}`);
    };
    source = stream(`${path}/events`, { events: Object.fromEntries(TYPES.map((type) => [type, ({ ts, data: { jobId, ...more } }) => {
      log.prepend(h("li", null, h("time", { class: "dim" }, clock(ts)), badge(type), jobId && press(jobId, () => find(jobId), { class: "link" }),
        h("span", { class: "dim" }, Object.keys(more).length > 0 && JSON.stringify(more).slice(0, 200))));
      if (log.childElementCount > KEPT) log.lastChild.remove();
    }])) });
    replace(about, h("div", { class: "two" },
      h("section", { class: "card stack" }, h("h2", null, "Find a job"),
        h("form", { class: "row", onSubmit: (event) => (event.preventDefault(), wanted.value && find(wanted.value)) }, wanted, h("button", null, "Find")), one),
      me.may("submit") && adder(name, path, find)),
    h("section", { class: "card" }, h("h2", null, "Events, from now on"), log));
    if (query.get("job")) find(query.get("job"));
    query.delete("job");
  }

  async function show(node, path) {
    try {
      const raw = await text(path);
      const job = JSON.parse(raw);
      replace(node, h("div", { class: "stack" },
        h("div", { class: "row" }, h("strong", null, job.name), h("code", null, job.id), badge(job.state), press("Again", () => show(node, path), { class: "small" }),
          me.may("cancel") && press(job.state === "active" ? "End it" : "Remove", (at) => remove(at, node, path), { class: "small danger" })),
        job.failedReason && h("div", { class: "box error" }, job.failedReason), jsonTree(raw, { open: 1 })));
    } catch (error) {
      replace(node, errorBox(error));
    }
  }

  async function remove(button, node, path) {
    if (!(await confirmDialog({ title: "Remove the job?", text: "With its children. One that runs is asked to end.", yes: "Remove" }))) return;
    const told = await act(button, del(path));
    if (told) replace(node, told.outcome);
  }

  function adder(queue, path, added) {
    const name = h("input", { value: queue, required: true });
    const data = h("textarea", { rows: 4, spellcheck: "false", value: "{}" });
    const opts = h("textarea", { rows: 2, spellcheck: "false", value: '{"attempts": 3}' });
    const send = async () => {
      for (const { value } of [data, opts]) JSON.parse(value);
      // As it was typed: numbers may be larger than a browser's.
      const body = `{"name":${JSON.stringify(name.value)},"data":${data.value},"opts":${opts.value}}`;
      const { id } = await post(`${path}/jobs`, new Blob([body], { type: "application/json" }));
      await added(id);
      await load();
    };
    return form("Add a job", "Add", send, field("Name", name), field("Data, JSON", data), field("Options, JSON", opts));
  }

  await load();
  const stop = often(load);
  return {
    title: "BullMQ",
    node: h("div", { class: "stack" }, pageHead("Queues of BullMQ"), names, about),
    destroy() {
      source?.close();
      stop();
    },
  };
}
