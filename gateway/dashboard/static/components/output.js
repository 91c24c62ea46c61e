// Output of a job while it runs: text, reasoning, tool calls, progress, token usage.

import { h } from "../lib/dom.js";
import { count, duration, printable } from "../lib/format.js";
import { jsonTree } from "./ui.js";

/** Fed by `add(event)`. A new attempt clears the output of the previous one. */
export function output() {
  const message = textPane("Output", "text-pane");
  const reasoning = textPane("Reasoning", "text-pane dim");
  const reasoningDetails = h("details", { hidden: true }, h("summary", null, "Reasoning"), reasoning.node);
  const progressBar = h("progress", { max: 100, hidden: true, "aria-label": "Progress" });
  const toolList = h("ul", { class: "tool-calls" });
  const usage = h("p", { class: "dim", hidden: true });
  const emptyNote = h("p", { class: "empty" }, "No output yet.");
  const node = h("div", { class: "output" }, progressBar, reasoningDetails, emptyNote, message.node, toolList, usage);
  const calls = new Map();
  let round = 0;

  function reset() {
    message.clear();
    reasoning.clear();
    toolList.replaceChildren();
    calls.clear();
    reasoningDetails.hidden = progressBar.hidden = usage.hidden = true;
    round = 0;
  }

  function addMessage(data) {
    emptyNote.hidden = true;
    if ((data.round ?? 0) !== round) {
      round = data.round ?? 0;
      if (!message.empty) message.add("\n\n");
    }
    message.add(typeof data.delta === "string" ? data.delta : toText(data.text ?? data) + "\n");
  }

  function addToolEvent(type, data) {
    emptyNote.hidden = true;
    let item = calls.get(data.id);
    if (!item) {
      item = h("li", null, h("details", null, h("summary", null, h("code", null, printable(data.name)), " "), jsonTree(data.arguments ?? null)));
      calls.set(data.id, item);
      toolList.append(item);
    }
    if (type !== "tool_result") return;
    const failed = data.error !== undefined && data.error !== null;
    item.firstChild.firstChild.append(h("small", null, failed ? "failed" : "returned", ` after ${duration(data.ms)}`));
    item.firstChild.append(jsonTree(failed ? data.error : (data.output ?? null)));
  }

  return {
    node,
    add({ type, data }) {
      if (!data || typeof data !== "object") return;
      if (type === "running") reset();
      else if (type === "message") addMessage(data);
      else if (type === "reasoning") {
        reasoningDetails.hidden = false;
        reasoning.add(toText(data.delta ?? data.text ?? ""));
      } else if (type === "progress") {
        const percent = data.percent ?? (data.total ? (100 * data.done) / data.total : null);
        if (!Number.isFinite(percent)) return;
        progressBar.hidden = false;
        progressBar.value = percent;
        progressBar.title = typeof data.message === "string" ? data.message : "";
      } else if (type === "tool_call" || type === "tool_result") addToolEvent(type, data);
      else if (type === "citation") toolList.append(h("li", null, h("q", null, toText(data.quote)), " ", h("small", null, toText(data.source ?? data.document_id))));
      else if (type === "usage") {
        usage.hidden = false;
        usage.textContent = usageText(data);
      } else if (type === "done" || type === "error" || type === "canceled") {
        progressBar.hidden = true;
        emptyNote.textContent = "No output.";
      }
    },
    get text() {
      return message.text;
    },
  };
}

const toText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function usageText(data) {
  const numbers = Object.entries(data).filter(([name, value]) => Number.isFinite(value) && name !== "attempt" && name !== "round");
  const parts = numbers.map(([name, value]) => (name.endsWith("_ms") ? `${name.slice(0, -3).replaceAll("_", " ")} ${duration(value)}` : `${name.replaceAll("_", " ")} ${count(value)}`));
  return [typeof data.model === "string" && printable(data.model), ...parts].filter(Boolean).join(" · ");
}

/** Text that grows in pieces, painted once per frame; it keeps scrolling while it is scrolled to its end. */
function textPane(label, className) {
  const textNode = document.createTextNode("");
  const node = h("pre", { class: className, dir: "auto", role: "region", "aria-label": label, tabindex: "0", hidden: true }, textNode);
  let pending = "";
  let content = "";
  let frame = 0;
  function paint() {
    frame = 0;
    const atEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 24;
    textNode.appendData(printable(pending));
    pending = "";
    node.hidden = !content;
    if (atEnd) node.scrollTop = node.scrollHeight;
  }
  return {
    node,
    get text() {
      return content;
    },
    get empty() {
      return !content;
    },
    add(piece) {
      content += piece;
      pending += piece;
      frame ||= requestAnimationFrame(paint);
    },
    clear() {
      content = pending = textNode.data = "";
      node.hidden = true;
    },
  };
}
