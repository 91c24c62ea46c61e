// The list of workflow jobs, and a form that starts one.

import { get, post, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { humanize } from "../../lib/format.js";
import { live } from "../../lib/live.js";
import { actionButton, badge, errorBox, field, formCard, pageHead, rowLink, runAction, segmented, table, timeAgo } from "../../components/ui.js";

const REFRESH_MS = 800;
const PAGE = 50;
const STATUSES = [["", "All"], ["waiting_input", "Waiting for input"], ["running", "Running"], ["completed", "Completed"], ["failed", "Failed"]];

export default async function workflows({ query, setQuery, navigate, session }) {
  let status = query.get("status") ?? "";
  let jobs = [];
  let cursor = null;
  let timer = 0;
  const list = h("section", { class: "card" });
  const startPanel = h("div");

  async function load(more = false) {
    const requested = status;
    const response = await get("/api/workflow/jobs", { status, limit: PAGE, cursor: more ? cursor : null });
    if (requested !== status) return;
    jobs = more ? [...jobs, ...response.jobs] : response.jobs;
    cursor = response.pagination.next_cursor;
    const focusedHref = document.activeElement?.getAttribute("href");
    replace(list, table({
      columns: [
        { name: "Job", cell: (job) => rowLink(url`/ui/workflows/${job.job_id}`, job.job_id) },
        { name: "Workflow", wide: true, cell: (job) => job.workflow },
        { name: "Status", cell: (job) => badge(job.status, humanize(job.status)) },
        { name: "Step", wide: true, cell: (job) => humanize(job.current_step) },
        { name: "Progress", wide: true, cell: (job) => h("progress", { value: job.progress, "aria-label": "Progress" }) },
        { name: "Updated", align: "right", cell: (job) => timeAgo(Date.parse(job.updated_at)) },
      ],
      rows: jobs,
      empty: status ? "No workflows match." : "No workflows yet.",
    }), cursor && actionButton("More", (button) => runAction(button, load(true))));
    if (focusedHref) list.querySelector(`[href="${CSS.escape(focusedHref)}"]`)?.focus();
  }

  // Steps are jobs: when jobs change, workflows may have changed too.
  function refreshSoon() {
    if (jobs.length <= PAGE) timer ||= setTimeout(() => ((timer = 0), load().catch(() => {})), REFRESH_MS);
  }

  async function toggleForm() {
    if (startPanel.firstChild) return replace(startPanel);
    const { workflows: definitions } = await get("/api/workflow/definitions");
    replace(startPanel, startForm(definitions, (job) => navigate(url`/ui/workflows/${job.job_id}`)));
    startPanel.querySelector("select").focus();
  }

  await load();
  const unsubscribers = [live.on("jobs", refreshSoon), live.on("resync", refreshSoon)];
  const canSubmit = session.can("submit");
  if (canSubmit && query.has("new")) await toggleForm();
  return {
    title: "Workflows",
    node: h("div", { class: "stack" }, pageHead("Workflows", canSubmit && actionButton("Start workflow", toggleForm, { class: "primary" })), startPanel,
      h("div", { class: "row" }, segmented("Status", STATUSES, status, (key) => {
        status = key;
        setQuery({ status });
        load().catch((error) => replace(list, errorBox(error)));
      })), list),
    keys: canSubmit && { n: toggleForm },
    help: [["n", "start a workflow"]],
    destroy() {
      for (const unsubscribe of unsubscribers) unsubscribe();
      clearTimeout(timer);
    },
  };
}

/** Form that starts any workflow; text and files become sources if the workflow has that step. */
function startForm(definitions, onStarted) {
  const workflowSelect = h("select", { onChange: updateFields }, definitions.map(({ name }) => h("option", null, name)));
  const text = h("textarea", { rows: 6 });
  const files = h("input", { type: "file", multiple: true, accept: "text/*,.md,.csv,.json,.log" });
  const autoAdvance = h("input", { type: "checkbox", checked: true });
  const minConfidence = h("input", { type: "number", min: 0, max: 1, step: 0.01 });
  const webhookUrl = h("input", { type: "url", placeholder: "https://" });
  const stepOptions = h("textarea", { rows: 3, spellcheck: "false", placeholder: '{"proposals": {"min_confidence": 0.7}}' });
  const descriptionNode = h("p", { class: "dim" });
  const sourceFields = h("div", { class: "stack" }, field("Text", text), field("Files", files, "Read in the browser and sent as text."));
  const reviewField = field("Auto-approve from this confidence", minConfidence, "Empty: every proposal is reviewed.");

  function updateFields() {
    const { description, steps } = definitions.find((definition) => definition.name === workflowSelect.value);
    descriptionNode.textContent = description;
    sourceFields.hidden = !steps.some((step) => step.name === "sources");
    reviewField.hidden = !steps.some((step) => step.kind === "review");
  }

  async function submit() {
    const sources = text.value.trim() ? [{ type: "text", title: "text", text: text.value }] : [];
    for (const file of files.files) sources.push({ type: "text", title: file.name.slice(0, 200), text: await file.text() });
    const { job } = await post("/api/workflow/jobs", {
      workflow: workflowSelect.value,
      auto_advance: autoAdvance.checked,
      ...(!sourceFields.hidden && sources.length && { sources }),
      ...(!reviewField.hidden && minConfidence.value && { review: { mode: "auto", auto_approve_min_confidence: Number(minConfidence.value) } }),
      ...(webhookUrl.value && { webhook: { url: webhookUrl.value } }),
      ...(stepOptions.value.trim() && { steps: JSON.parse(stepOptions.value) }),
    });
    onStarted(job);
  }

  updateFields();
  return formCard("Start a workflow", "Start", submit, field("Workflow", workflowSelect), descriptionNode, sourceFields,
    h("label", { class: "check" }, autoAdvance, "advance automatically"),
    h("details", null, h("summary", null, "More"), h("div", { class: "stack" }, reviewField, field("Webhook", webhookUrl), field("Step options (JSON)", stepOptions))));
}
