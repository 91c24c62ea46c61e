// Try a job: write it, submit it, watch it.

import { post, text, url } from "../api.js";
import { h, replace } from "../dom.js";
import { visible } from "../format.js";
import { act, badge, errorBox, field, members, pageHead, pretty, toast } from "../ui.js";
import { EXAMPLES } from "./examples.js";
import { jobRun, jsonCard, newKey, submit } from "./job_run.js";

const ENDED = new Set(["done", "error", "canceled"]);
/** Options of a job: name, label, step, hint. */
const OPTIONS = [
  ["ttl_s", "Kept for (s)", "1", "after its last change"],
  ["timeout_s", "Time for an attempt (s)", "any", ""],
  ["max_attempts", "Attempts", "1", "at most"],
  ["delay_s", "Begin in (s)", "any", ""],
];

export default async function page({ query, me, setQuery }) {
  const task = h("select", { onChange: () => (offer(), example(0)) }, Object.keys(EXAMPLES).map((name) => h("option", null, name)));
  const examples = h("select", { onChange: () => example(examples.selectedIndex) });
  const editor = h("textarea", { rows: 14, spellcheck: "false", autocapitalize: "off", dataset: { search: "" }, onInput: later, onKeydown: keys });
  const verdict = h("p", { class: "verdict", role: "status" });
  const inputs = OPTIONS.map(([name, , step]) => h("input", { name, type: "number", min: "0", step, placeholder: "default" }));
  const idempotency = h("input", { autocomplete: "off", placeholder: "made up" });
  const go = h("button", { type: "submit", class: "primary" }, "Submit");
  const stage = h("div", { class: "stack" });
  let run = null;
  let timer = 0;

  function offer() {
    replace(examples, Object.keys(EXAMPLES[task.value]).map((name) => h("option", null, name)));
    setQuery({ task: task.value, from: null });
  }

  function example(index) {
    write(JSON.stringify(Object.values(EXAMPLES[task.value])[index], null, 2));
  }

  function write(words) {
    editor.value = words;
    check();
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(check, 150);
  }

  /** Whether the payload is a JSON object; says where it is not. */
  function check() {
    clearTimeout(timer);
    let fault = "";
    try {
      const value = JSON.parse(editor.value);
      if (value === null || typeof value !== "object" || Array.isArray(value)) fault = "A payload is a JSON object: { … }";
    } catch (error) {
      fault = error.message;
    }
    editor.setAttribute("aria-invalid", String(Boolean(fault)));
    verdict.dataset.kind = fault ? "bad" : "good";
    verdict.textContent = fault ? visible(fault) : `JSON object, ${new Blob([editor.value]).size.toLocaleString("en")} bytes`;
    go.disabled = Boolean(fault);
    return !fault;
  }

  function keys(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  }

  async function send(event) {
    event.preventDefault();
    if (!check()) return;
    const wishes = {};
    for (const input of inputs) if (input.value !== "") wishes[input.name] = input.valueAsNumber;
    go.disabled = true;
    try {
      watch(await submit(task.value, editor.value, wishes, idempotency.value || newKey()));
    } catch (error) {
      stop();
      replace(stage, errorBox(error));
    } finally {
      go.disabled = false;
    }
  }

  function watch(jobId) {
    stop();
    const path = url`/v1/jobs/${jobId}`;
    const state = h("span", null, badge("queued"));
    const result = h("div", { class: "stack" });
    const halt = h("button", { type: "button", class: "danger", onClick: () => act(halt, () => post(`${path}/cancel`)) }, "Cancel");
    const mine = (run = jobRun(jobId, {
      async onChange() {
        const raw = await text(path).catch(() => null);
        if (!raw || run !== mine) return;
        const job = JSON.parse(raw);
        const source = members(raw);
        replace(state, badge(job.status));
        if (!ENDED.has(job.status)) return;
        halt.remove();
        replace(
          result,
          job.error !== null && jsonCard("Error", source.error),
          job.result !== null && jsonCard("Result", source.result),
        );
      },
    }));
    const head = h("div", { class: "row" }, state, h("a", { href: url`/ui/jobs/${jobId}` }, h("code", null, jobId)), me.may("cancel") && halt);
    replace(stage, head, run.output, result, run.timeline, run.events);
  }

  function stop() {
    run?.destroy();
    run = null;
  }

  const form = h(
    "form",
    { class: "card stack", onSubmit: send },
    h("div", { class: "row ends" }, field("Task", task), field("Example", examples)),
    field("Payload", editor),
    h("div", { class: "row between" }, verdict, h("button", { type: "button", class: "small", onClick: () => write(pretty(editor.value)) }, "Format")),
    h(
      "details",
      null,
      h("summary", null, "Options"),
      h("div", { class: "options" }, OPTIONS.map(([, label, , hint], i) => field(label, inputs[i], hint)), field("Idempotency key", idempotency)),
    ),
    me.may("submit")
      ? h("div", { class: "row" }, go, h("small", null, h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter")))
      : h("p", { class: "box" }, "This session may look and not submit."),
  );

  if (Object.hasOwn(EXAMPLES, query.get("task"))) task.value = query.get("task");
  const from = query.get("from");
  const raw = from && (await text(url`/v1/jobs/${from}`).catch((error) => void toast(error.detail, "bad")));
  if (raw && Object.hasOwn(EXAMPLES, JSON.parse(raw).task)) task.value = JSON.parse(raw).task;
  offer();
  if (raw) write(members(raw).payload);
  else example(0);
  replace(stage, h("p", { class: "empty card" }, "What the job says appears here as it says it."));
  return {
    title: "Playground",
    node: h("div", null, pageHead("Playground"), h("div", { class: "two play" }, form, stage)),
    destroy() {
      clearTimeout(timer);
      stop();
    },
  };
}
