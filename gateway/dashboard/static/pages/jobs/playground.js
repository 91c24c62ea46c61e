// Playground: write a job, submit it, watch it.

import { getText, post, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { printable } from "../../lib/format.js";
import { badge, errorBox, field, members, pageHead, pretty, runAction, toast } from "../../components/ui.js";
import { jobRun, jsonCard, newIdempotencyKey, submit } from "./job_run.js";

/** Example payloads by task. An echo worker accepts anything. */
const EXAMPLES = {
  chat: {
    "A question": { messages: [{ role: "user", content: "Why does a sluice have two gates?" }], max_tokens: 200 },
    "Any text": { text: "hello" },
    "With a system prompt": {
      messages: [
        { role: "system", content: "Answer in one short sentence." },
        { role: "user", content: "What is a message queue?" },
      ],
      temperature: 0.2,
    },
    "With tools": { messages: [{ role: "user", content: "What is 17 * 23?" }], tools: ["calculator"] },
  },
  plan: {
    "A goal": { goal: "Move a website to another server without downtime", max_steps: 5 },
    "With context": { goal: "Write the release notes", context: "There are 40 commits since the last tag.", max_steps: 4 },
  },
  code: {
    "A function": { prompt: "A function that checks whether a year is a leap year", language: "python", check: true },
    "A script": { prompt: "Count the lines of every .md file below the current directory", language: "bash" },
  },
  tool: {
    "Arithmetic": { tool: "calculator", args: { expression: "17 * 23" } },
    "Current time, dry run": { tool: "now", args: {}, dry_run: true },
  },
  rag: {
    "Ingest a text": { op: "ingest", document: { title: "Locks", text: "A sluice is a gate that controls a stream." } },
    "Search": { op: "query", query: "what controls a stream?", top_k: 3 },
    "Answer from documents": { op: "query", query: "What is a sluice?", answer: true },
  },
  embed: {
    "Two texts": { input: ["a gate that controls a stream", "a queue of jobs"] },
  },
};
const ENDED = new Set(["done", "error", "canceled"]);
/** Options of a job: [name, label, step of the input, hint]. */
const OPTIONS = [
  ["ttl_s", "Time to live (s)", "1", "after its last change"],
  ["timeout_s", "Timeout per attempt (s)", "any", ""],
  ["max_attempts", "Max. attempts", "1", ""],
  ["delay_s", "Delay (s)", "any", ""],
];

export default async function page({ query, session, setQuery }) {
  const task = h("select", { onChange: () => (showExamples(), useExample(0)) }, Object.keys(EXAMPLES).map((name) => h("option", null, name)));
  const exampleSelect = h("select", { onChange: () => useExample(exampleSelect.selectedIndex) });
  const editor = h("textarea", { rows: 14, spellcheck: "false", autocapitalize: "off", dataset: { search: "" }, onInput: validateSoon, onKeydown });
  const validation = h("p", { class: "validation", role: "status" });
  const inputs = OPTIONS.map(([name, , step]) => h("input", { name, type: "number", min: "0", step, placeholder: "default" }));
  const idempotency = h("input", { autocomplete: "off", placeholder: "generated" });
  const submitButton = h("button", { type: "submit", class: "primary" }, "Submit");
  const resultPane = h("div", { class: "stack" });
  let run = null;
  let timer = 0;

  function showExamples() {
    replace(exampleSelect, Object.keys(EXAMPLES[task.value]).map((name) => h("option", null, name)));
    setQuery({ task: task.value, from: null });
  }

  function useExample(index) {
    setPayload(JSON.stringify(Object.values(EXAMPLES[task.value])[index], null, 2));
  }

  function setPayload(json) {
    editor.value = json;
    validate();
  }

  function validateSoon() {
    clearTimeout(timer);
    timer = setTimeout(validate, 150);
  }

  /** Validate the payload; shows the error if it is not a JSON object. */
  function validate() {
    clearTimeout(timer);
    let problem = "";
    try {
      const value = JSON.parse(editor.value);
      if (value === null || typeof value !== "object" || Array.isArray(value)) problem = "The payload must be a JSON object: { … }";
    } catch (error) {
      problem = error.message;
    }
    editor.setAttribute("aria-invalid", String(Boolean(problem)));
    validation.dataset.kind = problem ? "bad" : "good";
    validation.textContent = problem ? printable(problem) : `JSON object, ${new Blob([editor.value]).size.toLocaleString("en")} bytes`;
    submitButton.disabled = Boolean(problem);
    return !problem;
  }

  function onKeydown(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  }

  async function onSubmit(event) {
    event.preventDefault();
    if (!validate()) return;
    const options = {};
    for (const input of inputs) if (input.value !== "") options[input.name] = input.valueAsNumber;
    submitButton.disabled = true;
    try {
      watch(await submit(task.value, editor.value, options, idempotency.value || newIdempotencyKey()));
    } catch (error) {
      stop();
      replace(resultPane, errorBox(error));
    } finally {
      submitButton.disabled = false;
    }
  }

  function watch(jobId) {
    stop();
    const path = url`/v1/jobs/${jobId}`;
    const statusNode = h("span", null, badge("queued"));
    const result = h("div", { class: "stack" });
    const cancelButton = h("button", { type: "button", class: "danger", onClick: () => runAction(cancelButton, () => post(`${path}/cancel`)) }, "Cancel");
    const current = (run = jobRun(jobId, {
      async onChange() {
        const raw = await getText(path).catch(() => null);
        if (!raw || run !== current) return;
        const job = JSON.parse(raw);
        const source = members(raw);
        replace(statusNode, badge(job.status));
        if (!ENDED.has(job.status)) return;
        cancelButton.remove();
        replace(
          result,
          job.error !== null && jsonCard("Error", source.error),
          job.result !== null && jsonCard("Result", source.result),
        );
      },
    }));
    const header = h("div", { class: "row" }, statusNode, h("a", { href: url`/ui/jobs/${jobId}` }, h("code", null, jobId)), session.can("cancel") && cancelButton);
    replace(resultPane, header, run.output, result, run.timeline, run.events);
  }

  function stop() {
    run?.destroy();
    run = null;
  }

  const form = h(
    "form",
    { class: "card stack", onSubmit },
    h("div", { class: "row align-end" }, field("Task", task), field("Example", exampleSelect)),
    field("Payload", editor),
    h("div", { class: "row between" }, validation, h("button", { type: "button", class: "small", onClick: () => setPayload(pretty(editor.value)) }, "Format")),
    h(
      "details",
      null,
      h("summary", null, "Options"),
      h("div", { class: "options" }, OPTIONS.map(([, label, , hint], i) => field(label, inputs[i], hint)), field("Idempotency key", idempotency)),
    ),
    session.can("submit")
      ? h("div", { class: "row" }, submitButton, h("small", null, h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter")))
      : h("p", { class: "box" }, "This session may not submit jobs."),
  );

  if (Object.hasOwn(EXAMPLES, query.get("task"))) task.value = query.get("task");
  const from = query.get("from");
  const raw = from && (await getText(url`/v1/jobs/${from}`).catch((error) => void toast(error.detail, "bad")));
  if (raw && Object.hasOwn(EXAMPLES, JSON.parse(raw).task)) task.value = JSON.parse(raw).task;
  showExamples();
  if (raw) setPayload(members(raw).payload);
  else useExample(0);
  replace(resultPane, h("p", { class: "empty card" }, "The output of the job appears here while it runs."));
  return {
    title: "Playground",
    node: h("div", null, pageHead("Playground"), h("div", { class: "two-columns playground" }, form, resultPane)),
    destroy() {
      clearTimeout(timer);
      stop();
    },
  };
}
