// One workflow job: its steps, what each came to, what happened, and the review.

import { get, post, stream, url } from "../api.js";
import { h, replace } from "../dom.js";
import { clock } from "../format.js";
import { act, badge, confirmDialog, errorBox, jsonTree, pageHead, when } from "../ui.js";
import { folded, press, steady, words } from "./parts.js";
import { HELP, review } from "./review.js";

const ENDS = ["job.completed", "job.failed", "job.cancelled"];
const EVENTS = [...ENDS, "job.created", "step.started", "step.completed", "step.failed", "step.progress", "step.reset", "job.waiting_input", "item.changed", "undo.applied"];
const MARKS = { complete: "✓", failed: "!", cancelled: "×", running: "…", waiting_input: "?" };
const KEPT = 200;
const SOON_MS = 150;

export default async function workflow({ params: { id }, query, setQuery, me }) {
  const path = url`/api/workflow/jobs/${id}`;
  const [first, { workflows }] = await Promise.all([get(`${path}/status`), get("/api/workflow/definitions")]);
  let { job } = first;
  const declared = workflows.find((each) => each.name === job.workflow)?.steps ?? [];
  const reviewStep = declared.find((step) => step.kind === "review")?.name;
  const head = h("div");
  const steps = h("ol", { class: "stepper" });
  const panel = h("div");
  const log = h("ol", { class: "story" });
  const raw = h("div");
  let chosen = query.get("step");
  let byHand = Boolean(chosen);
  let open = null; // the review on the screen
  let source = null;
  let turn = 0;
  let timer = 0;
  const total = job.pagination.events.total ?? 0;
  let last = total > KEPT ? `${total - KEPT}-0` : "";

  const stepOf = (name) => job.stepper.find((step) => step.name === name);

  // -- as it stands ------------------------------------------------------------------------

  async function refresh() {
    const before = stepOf(chosen)?.status;
    ({ job } = await get(`${path}/status`));
    const next = job.status === "waiting_input" ? reviewStep : job.current_step;
    if (!byHand && !open && stepOf(next)) chosen = next;
    chosen = stepOf(chosen)?.name ?? job.stepper[0].name;
    draw();
    if (before !== stepOf(chosen).status || !panel.firstChild) await show();
    else open?.heads();
  }

  /** Once for many events. */
  function soon() {
    timer ||= setTimeout(() => ((timer = 0), refresh().catch(() => {})), SOON_MS);
  }

  function draw() {
    const ended = ["completed", "cancelled"].includes(job.status);
    const next = job.stepper.find((step) => step.status !== "complete");
    const startable = !ended && ["not_started", "failed"].includes(next?.status);
    steady(head,
      pageHead(id,
        me.may("submit") && startable && press(`Run ${words(next.name)}${next.attempt ? " again" : ""}`, (at) => run(at, next.name), { class: "primary" }),
        me.may("decide") && !open && job.undo.last_undo_token && press("Undo last", undo),
        me.may("cancel") && !ended && job.status !== "failed" && press("Cancel", cancel, { class: "danger" })),
      h("div", { class: "row" }, badge(job.status, words(job.status)), job.workflow,
        h("progress", { value: job.progress, "aria-label": "Progress" }), `${Math.round(job.progress * 100)} %`,
        job.draft_state === "dirty" && badge("dirty", "not applied"),
        h("span", { class: "dim" }, "changed ", when(Date.parse(job.updated_at))),
        job.webhook.enabled && h("span", { class: "dim" }, `webhook: ${job.webhook.last_delivery_status ?? "not told yet"}`)));
    steady(steps, job.stepper.map((step, place) => h("li", { dataset: { status: step.status } },
      h("button", { "aria-current": step.name === chosen && "step", onClick: () => choose(step.name) },
        h("span", { class: "mark", "aria-hidden": "true" }, MARKS[step.status] ?? place + 1), words(step.name), h("small", null, words(step.status))))));
    if (raw.parentNode?.open) replace(raw, jsonTree(job));
  }

  function choose(step) {
    chosen = step;
    byHand = true;
    setQuery({ step });
    draw();
    return show();
  }

  async function show() {
    const mine = (turn += 1);
    const about = declared.find((step) => step.name === chosen);
    const proposing = about?.proposes ? chosen : about?.reviews;
    const ready = proposing && stepOf(proposing).status === "complete";
    if (ready && open?.step === proposing) return open.heads();
    open?.destroy();
    open = null;
    try {
      const may = me.may("decide");
      const waiting = () => stepOf(reviewStep)?.status === "waiting_input";
      const made = ready ? await review({ jobId: id, step: proposing, reviewStep, waiting, may }) : { node: await outcome(stepOf(chosen)) };
      if (mine !== turn) return made.destroy?.();
      if (ready) open = { ...made, step: proposing };
      replace(panel, made.node);
    } catch (error) {
      if (mine === turn) replace(panel, errorBox(error));
    }
    draw();
  }

  async function outcome(step) {
    const read = (cursor) => get(`${path}/results`, { step: step.name, cursor });
    const { result, errors } = await read();
    const items = h("div", null, result.items.map(itemNode));
    const more = h("div");
    const offer = (cursor) => replace(more, cursor && press("More", async (at) => {
      const next = await act(at, read(cursor));
      if (!next) return;
      items.append(...next.result.items.map(itemNode));
      offer(next.result.pagination.next_cursor);
    }));
    offer(result.pagination.next_cursor);
    const again = me.may("submit") && step.status === "complete" && ["failed", "waiting_input", "queued"].includes(job.status);
    return h("section", { class: "card stack" },
      h("div", { class: "card-head" }, h("h2", null, words(step.name)), again && press("Run again", (at) => run(at, step.name), { class: "small" })),
      errors.length ? errors.map((error) => h("div", { class: "box error" }, h("code", null, error.code), " ", error.message)) : h("p", null, result.summary),
      items, more);
  }

  // -- what a person does ------------------------------------------------------------------

  /** A deed, and what came of it: a stream that had ended may have more to tell. */
  async function does(button, deed, said) {
    await act(button, deed, said);
    await refresh().catch(() => {});
    if (!source) listen();
  }

  const run = (button, step, wish = {}) => does(button, async () => {
    try {
      await post(path + url`/steps/${step}/execute`, { wait_s: 0, ...wish });
    } catch (error) {
      if (error.code === "review_required") return;
      if (error.code !== "would_discard_decisions") throw error;
      const sure = await confirmDialog({ title: "Lose the decisions?", text: error.detail, yes: "Run it, and lose them" });
      if (sure) await run(button, step, { discard_decisions: true });
    }
  });

  async function undo(button) {
    const sure = await confirmDialog({ title: "Take back the last operation?", text: "What it applied is undone as well.", yes: "Take back" });
    if (sure) await does(button, post(`${path}/undo`, { undo_token: job.undo.last_undo_token, wait_s: 20 }), "Taken back.");
  }

  async function cancel(button) {
    const sure = await confirmDialog({ title: `Cancel ${id}?`, text: "What runs is stopped. What was applied stays.", yes: "Cancel it" });
    if (sure) await does(button, post(`${path}/cancel`, {}), "Cancelled.");
  }

  // -- live --------------------------------------------------------------------------------

  function listen() {
    const heard = (type) => [type, (event, eventId) => {
      last = eventId;
      note(type, event);
      if (parseInt(eventId) <= total) return; // was there before the page
      if (type === "item.changed" || type === "undo.applied") open?.heard(event.data);
      soon();
    }];
    source = stream(`${path}/events/stream${last && `?last_event_id=${last}`}`, {
      events: Object.fromEntries(EVENTS.map(heard)),
      until: ENDS,
      onState: (state) => (state === "end" ? (source = null) : soon()),
    });
  }

  function note(type, { ts, step, data }) {
    const { core_job_id: core, attempt, ...told } = data ?? {};
    if (type === "step.progress" && log.firstChild?.dataset.type === type) log.firstChild.remove();
    log.prepend(h("li", { dataset: { type } }, h("time", { class: "dim" }, clock(ts)), h("code", null, type), words(step),
      attempt > 1 && `again, ${attempt}`, h("span", { class: "dim" }, saying(told)), core && h("a", { href: url`/ui/jobs/${core}` }, "job")));
    if (log.childElementCount > KEPT) log.lastChild.remove();
  }

  await refresh();
  listen();
  const json = folded("As JSON", raw);
  json.addEventListener("toggle", draw);
  return {
    title: id,
    node: h("div", { class: "stack" }, head, steps, panel, folded("What happened", log), json),
    get keys() {
      return open?.keys;
    },
    get help() {
      return open && HELP;
    },
    destroy() {
      source?.close();
      open?.destroy();
      clearTimeout(timer);
    },
  };
}

function itemNode({ id, status, payload }) {
  const name = payload.title ?? payload.term ?? payload.name ?? payload.text ?? "";
  return h("details", { class: "item" }, h("summary", null, h("code", null, id), ` ${String(name).slice(0, 120)} `, status !== "complete" && badge(status)), jsonTree(payload));
}

function saying({ summary, message, operation, count, who, done, total, execution_id: _, step: __, ...rest }) {
  const told = [summary ?? message ?? operation, count && `${count} items`, total && `${done} of ${total}`, who && `by ${who}`].filter(Boolean);
  return told.join(", ") || (Object.keys(rest).length ? JSON.stringify(rest).slice(0, 200) : "");
}
