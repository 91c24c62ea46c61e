// All workflow jobs, and a form that starts one.

import { get, post, url } from "../api.js";
import { h, replace } from "../dom.js";
import { live } from "../live.js";
import { act, badge, errorBox, field, pageHead, rowLink, segmented, table, when } from "../ui.js";
import { form, press, words } from "./parts.js";

const SOON_MS = 800;
const PAGE = 50;
const STATUSES = [["", "All"], ["waiting_input", "Waiting for you"], ["running", "Running"], ["completed", "Completed"], ["failed", "Failed"]];

export default async function workflows({ query, setQuery, navigate, me }) {
  let status = query.get("status") ?? "";
  let jobs = [];
  let cursor = null;
  let timer = 0;
  const list = h("section", { class: "card" });
  const starting = h("div");

  async function load(more = false) {
    const asked = status;
    const found = await get("/api/workflow/jobs", { status, limit: PAGE, cursor: more ? cursor : null });
    if (asked !== status) return;
    jobs = more ? [...jobs, ...found.jobs] : found.jobs;
    cursor = found.pagination.next_cursor;
    const focused = document.activeElement?.getAttribute("href");
    replace(list, table({
      columns: [
        { name: "Job", cell: (job) => rowLink(url`/ui/workflows/${job.job_id}`, job.job_id) },
        { name: "Workflow", wide: true, cell: (job) => job.workflow },
        { name: "Status", cell: (job) => badge(job.status, words(job.status)) },
        { name: "Step", wide: true, cell: (job) => words(job.current_step) },
        { name: "Progress", wide: true, cell: (job) => h("progress", { value: job.progress, "aria-label": "Progress" }) },
        { name: "Changed", align: "right", cell: (job) => when(Date.parse(job.updated_at)) },
      ],
      rows: jobs,
      empty: "None here.",
    }), cursor && press("More", (at) => act(at, load(true))));
    if (focused) list.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  }

  // Steps are jobs: where jobs change, workflows may have.
  function soon() {
    if (jobs.length <= PAGE) timer ||= setTimeout(() => ((timer = 0), load().catch(() => {})), SOON_MS);
  }

  async function start() {
    if (starting.firstChild) return replace(starting);
    const { workflows: known } = await get("/api/workflow/definitions");
    replace(starting, starter(known, (job) => navigate(url`/ui/workflows/${job.job_id}`)));
    starting.querySelector("select").focus();
  }

  await load();
  const offs = [live.on("jobs", soon), live.on("again", soon)];
  const may = me.may("submit");
  if (may && query.has("new")) await start();
  return {
    title: "Workflows",
    node: h("div", { class: "stack" }, pageHead("Workflows", may && press("Start one", start, { class: "primary" })), starting,
      h("div", { class: "row" }, segmented("Status", STATUSES, status, (key) => {
        status = key;
        setQuery({ status });
        load().catch((error) => replace(list, errorBox(error)));
      })), list),
    keys: may && { n: start },
    help: [["n", "start one"]],
    destroy() {
      for (const off of offs) off();
      clearTimeout(timer);
    },
  };
}

/** For any workflow; texts and files become sources where it takes some. */
function starter(known, started) {
  const which = h("select", { onChange: fit }, known.map(({ name }) => h("option", null, name)));
  const text = h("textarea", { rows: 6 });
  const files = h("input", { type: "file", multiple: true, accept: "text/*,.md,.csv,.json,.log" });
  const auto = h("input", { type: "checkbox", checked: true });
  const least = h("input", { type: "number", min: 0, max: 1, step: 0.01 });
  const hook = h("input", { type: "url", placeholder: "https://" });
  const options = h("textarea", { rows: 3, spellcheck: "false", placeholder: '{"proposals": {"min_confidence": 0.7}}' });
  const about = h("p", { class: "dim" });
  const takes = h("div", { class: "stack" }, field("Text", text), field("Files", files, "Read here, sent as text."));
  const sure = field("Approve by itself from this confidence on", least, "Empty: a person decides on all.");

  function fit() {
    const { description, steps } = known.find((each) => each.name === which.value);
    about.textContent = description;
    takes.hidden = !steps.some((step) => step.name === "sources");
    sure.hidden = !steps.some((step) => step.kind === "review");
  }

  async function send() {
    const sources = text.value.trim() ? [{ type: "text", title: "text", text: text.value }] : [];
    for (const file of files.files) sources.push({ type: "text", title: file.name.slice(0, 200), text: await file.text() });
    const { job } = await post("/api/workflow/jobs", {
      workflow: which.value,
      auto_advance: auto.checked,
      ...(!takes.hidden && sources.length && { sources }),
      ...(!sure.hidden && least.value && { review: { mode: "auto", auto_approve_min_confidence: Number(least.value) } }),
      ...(hook.value && { webhook: { url: hook.value } }),
      ...(options.value.trim() && { steps: JSON.parse(options.value) }),
    });
    started(job);
  }

  fit();
  return form("Start a workflow", "Start", send, field("Workflow", which), about, takes,
    h("label", { class: "check" }, auto, "go from step to step by itself"),
    h("details", null, h("summary", null, "More"), h("div", { class: "stack" }, sure, field("Webhook", hook), field("Options of steps, JSON", options))));
}
