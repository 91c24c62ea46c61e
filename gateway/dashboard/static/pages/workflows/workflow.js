// One workflow job: steps, results, events, and the review.

import { get, post, stream, url } from "../../lib/api.js";
import { h, replace, replaceKeepingFocus } from "../../lib/dom.js";
import { clock, humanize, plural } from "../../lib/format.js";
import { actionButton, badge, collapsible, confirmDialog, errorBox, jsonTree, pageHead, runAction, timeAgo } from "../../components/ui.js";
import { HELP, review } from "./review.js";

const FINAL_EVENTS = ["job.completed", "job.failed", "job.cancelled"];
const EVENTS = [...FINAL_EVENTS, "job.created", "step.started", "step.completed", "step.failed", "step.progress", "step.reset", "job.waiting_input", "item.changed", "undo.applied"];
const STEP_MARKS = { complete: "✓", failed: "!", cancelled: "×", running: "…", waiting_input: "?" };
const MAX_EVENTS = 200;
const REFRESH_MS = 150;

export default async function workflow({ params: { id }, query, setQuery, session }) {
  const path = url`/api/workflow/jobs/${id}`;
  const [first, { workflows }] = await Promise.all([get(`${path}/status`), get("/api/workflow/definitions")]);
  let { job } = first;
  const declared = workflows.find((workflow) => workflow.name === job.workflow)?.steps ?? [];
  const reviewStep = declared.find((step) => step.kind === "review")?.name;
  const head = h("div");
  const steps = h("ol", { class: "stepper" });
  const panel = h("div");
  const eventList = h("ol", { class: "event-list" });
  const jsonPane = h("div");
  let selected = query.get("step");
  let selectedByUser = Boolean(selected);
  let openReview = null; // the review that is shown
  let source = null;
  let showCount = 0;
  let timer = 0;
  const total = job.pagination.events.total ?? 0;
  let lastEventId = total > MAX_EVENTS ? `${total - MAX_EVENTS}-0` : "";

  const stepOf = (name) => job.stepper.find((step) => step.name === name);

  // -- state -------------------------------------------------------------------------------

  async function refresh() {
    const previousStatus = stepOf(selected)?.status;
    ({ job } = await get(`${path}/status`));
    const next = job.status === "waiting_input" ? reviewStep : job.current_step;
    if (!selectedByUser && !openReview && stepOf(next)) selected = next;
    selected = stepOf(selected)?.name ?? job.stepper[0].name;
    draw();
    if (previousStatus !== stepOf(selected).status || !panel.firstChild) await show();
    else openReview?.updateHeader();
  }

  /** Refresh once for a burst of events. */
  function refreshSoon() {
    timer ||= setTimeout(() => ((timer = 0), refresh().catch(() => {})), REFRESH_MS);
  }

  function draw() {
    const ended = ["completed", "cancelled"].includes(job.status);
    const next = job.stepper.find((step) => step.status !== "complete");
    const startable = !ended && ["not_started", "failed"].includes(next?.status);
    replaceKeepingFocus(head,
      pageHead(id,
        session.can("submit") && startable && actionButton(`Run ${humanize(next.name)}${next.attempt ? " again" : ""}`, (button) => runStep(button, next.name), { class: "primary" }),
        session.can("decide") && !openReview && job.undo.last_undo_token && actionButton("Undo last", undo),
        session.can("cancel") && !ended && job.status !== "failed" && actionButton("Cancel", cancel, { class: "danger" })),
      h("div", { class: "row" }, badge(job.status, humanize(job.status)), job.workflow,
        h("progress", { value: job.progress, "aria-label": "Progress" }), `${Math.round(job.progress * 100)} %`,
        job.draft_state === "dirty" && badge("dirty", "not applied"),
        h("span", { class: "dim" }, "updated ", timeAgo(Date.parse(job.updated_at))),
        job.webhook.enabled && h("span", { class: "dim" }, `webhook: ${job.webhook.last_delivery_status ?? "no delivery yet"}`)));
    replaceKeepingFocus(steps, job.stepper.map((step, index) => h("li", { dataset: { status: step.status } },
      h("button", { "aria-current": step.name === selected && "step", onClick: () => select(step.name) },
        h("span", { class: "mark", "aria-hidden": "true" }, STEP_MARKS[step.status] ?? index + 1), humanize(step.name), h("small", null, humanize(step.status))))));
    if (jsonPane.parentNode?.open) replace(jsonPane, jsonTree(job));
  }

  function select(step) {
    selected = step;
    selectedByUser = true;
    setQuery({ step });
    draw();
    return show();
  }

  async function show() {
    const showId = (showCount += 1);
    const definition = declared.find((step) => step.name === selected);
    const reviewedStep = definition?.proposes ? selected : definition?.reviews;
    const showReview = reviewedStep && stepOf(reviewedStep).status === "complete";
    if (showReview && openReview?.step === reviewedStep) return openReview.updateHeader();
    openReview?.destroy();
    openReview = null;
    try {
      const canDecide = session.can("decide");
      const waiting = () => stepOf(reviewStep)?.status === "waiting_input";
      const view = showReview ? await review({ jobId: id, step: reviewedStep, reviewStep, waiting, canDecide }) : { node: await resultCard(stepOf(selected)) };
      if (showId !== showCount) return view.destroy?.();
      if (showReview) openReview = { ...view, step: reviewedStep };
      replace(panel, view.node);
    } catch (error) {
      if (showId === showCount) replace(panel, errorBox(error));
    }
    draw();
  }

  async function resultCard(step) {
    const read = (cursor) => get(`${path}/results`, { step: step.name, cursor });
    const { result, errors } = await read();
    const items = h("div", null, result.items.map(itemNode));
    const footer = h("div");
    const showMore = (cursor) => replace(footer, cursor && actionButton("More", async (button) => {
      const next = await runAction(button, read(cursor));
      if (!next) return;
      items.append(...next.result.items.map(itemNode));
      showMore(next.result.pagination.next_cursor);
    }));
    showMore(result.pagination.next_cursor);
    const canRunAgain = session.can("submit") && step.status === "complete" && ["failed", "waiting_input", "queued"].includes(job.status);
    return h("section", { class: "card stack" },
      h("div", { class: "card-head" }, h("h2", null, humanize(step.name)), canRunAgain && actionButton("Run again", (button) => runStep(button, step.name), { class: "small" })),
      errors.length ? errors.map((error) => h("div", { class: "box error" }, h("code", null, error.code), " ", error.message)) : h("p", null, result.summary),
      items, footer);
  }

  // -- actions -----------------------------------------------------------------------------

  /** Run an action and refresh. A stream that has ended is opened again: there may be new events. */
  async function runAndRefresh(button, action, successText) {
    await runAction(button, action, successText);
    await refresh().catch(() => {});
    if (!source) openStream();
  }

  const runStep = (button, step, options = {}) => runAndRefresh(button, async () => {
    try {
      await post(path + url`/steps/${step}/execute`, { wait_s: 0, ...options });
    } catch (error) {
      if (error.code === "review_required") return;
      if (error.code !== "would_discard_decisions") throw error;
      const confirmed = await confirmDialog({ title: "Discard the decisions?", text: error.detail, yes: "Run and discard" });
      if (confirmed) await runStep(button, step, { discard_decisions: true });
    }
  });

  async function undo(button) {
    const confirmed = await confirmDialog({ title: "Undo the last operation?", text: "Changes that it applied are undone as well.", yes: "Undo" });
    if (confirmed) await runAndRefresh(button, post(`${path}/undo`, { undo_token: job.undo.last_undo_token, wait_s: 20 }), "Undone.");
  }

  async function cancel(button) {
    const confirmed = await confirmDialog({ title: `Cancel ${id}?`, text: "The running step is stopped. Applied changes stay.", yes: "Cancel workflow", no: "Keep running" });
    if (confirmed) await runAndRefresh(button, post(`${path}/cancel`, {}), "Cancelled.");
  }

  // -- events ------------------------------------------------------------------------------

  function openStream() {
    const handlerOf = (type) => [type, (event, eventId) => {
      lastEventId = eventId;
      addEvent(type, event);
      if (parseInt(eventId) <= total) return; // older than the page
      if (type === "item.changed" || type === "undo.applied") openReview?.onEvent(event.data);
      refreshSoon();
    }];
    source = stream(`${path}/events/stream${lastEventId && `?last_event_id=${lastEventId}`}`, {
      events: Object.fromEntries(EVENTS.map(handlerOf)),
      until: FINAL_EVENTS,
      onState: (state) => (state === "end" ? (source = null) : refreshSoon()),
    });
  }

  function addEvent(type, { ts, step, data }) {
    const { core_job_id: coreJobId, attempt, ...details } = data ?? {};
    if (type === "step.progress" && eventList.firstChild?.dataset.type === type) eventList.firstChild.remove();
    eventList.prepend(h("li", { dataset: { type } }, h("time", { class: "dim" }, clock(ts)), h("code", null, type), humanize(step),
      attempt > 1 && `attempt ${attempt}`, h("span", { class: "dim" }, detailsText(details)), coreJobId && h("a", { href: url`/ui/jobs/${coreJobId}` }, "job")));
    if (eventList.childElementCount > MAX_EVENTS) eventList.lastChild.remove();
  }

  await refresh();
  openStream();
  const json = collapsible("JSON", jsonPane);
  json.addEventListener("toggle", draw);
  return {
    title: id,
    node: h("div", { class: "stack" }, head, steps, panel, collapsible("Events", eventList), json),
    get keys() {
      return openReview?.keys;
    },
    get help() {
      return openReview && HELP;
    },
    destroy() {
      source?.close();
      openReview?.destroy();
      clearTimeout(timer);
    },
  };
}

function itemNode({ id, status, payload }) {
  const name = payload.title ?? payload.term ?? payload.name ?? payload.text ?? "";
  return h("details", { class: "item" }, h("summary", null, h("code", null, id), ` ${String(name).slice(0, 120)} `, status !== "complete" && badge(status)), jsonTree(payload));
}

function detailsText({ summary, message, operation, count, who, done, total, execution_id: _, step: __, ...rest }) {
  const details = [summary ?? message ?? operation, count && plural(count, "item"), total && `${done} of ${total}`, who && `by ${who}`].filter(Boolean);
  return details.join(", ") || (Object.keys(rest).length ? JSON.stringify(rest).slice(0, 200) : "");
}
