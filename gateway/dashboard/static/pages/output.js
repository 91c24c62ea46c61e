// What a job says while it runs: tokens joined to text, thoughts, tools, progress, tokens used.

import { h } from "../dom.js";
import { count, duration, visible } from "../format.js";
import { jsonTree } from "../ui.js";

/** `add(event)`; an attempt that begins anew drops what the one before had said. */
export function output() {
  const answer = flowing("Output", "flow");
  const thoughts = flowing("Thoughts", "flow dim");
  const thinking = h("details", { hidden: true }, h("summary", null, "Thoughts"), thoughts.node);
  const bar = h("progress", { max: 100, hidden: true, "aria-label": "Progress" });
  const beside = h("ul", { class: "beside" });
  const used = h("p", { class: "dim", hidden: true });
  const nothing = h("p", { class: "empty" }, "Nothing yet.");
  const node = h("div", { class: "output" }, bar, thinking, nothing, answer.node, beside, used);
  const calls = new Map();
  let round = 0;

  function reset() {
    answer.clear();
    thoughts.clear();
    beside.replaceChildren();
    calls.clear();
    thinking.hidden = bar.hidden = used.hidden = true;
    round = 0;
  }

  function say(data) {
    nothing.hidden = true;
    if ((data.round ?? 0) !== round) {
      round = data.round ?? 0;
      if (!answer.empty) answer.add("\n\n");
    }
    answer.add(typeof data.delta === "string" ? data.delta : text(data.text ?? data) + "\n");
  }

  function tool(type, data) {
    nothing.hidden = true;
    let item = calls.get(data.id);
    if (!item) {
      item = h("li", null, h("details", null, h("summary", null, h("code", null, visible(data.name)), " "), jsonTree(data.arguments ?? null)));
      calls.set(data.id, item);
      beside.append(item);
    }
    if (type !== "tool_result") return;
    const failed = data.error !== undefined && data.error !== null;
    item.firstChild.firstChild.append(h("small", null, failed ? "failed" : "answered", ` after ${duration(data.ms)}`));
    item.firstChild.append(jsonTree(failed ? data.error : (data.output ?? null)));
  }

  return {
    node,
    add({ type, data }) {
      if (!data || typeof data !== "object") return;
      if (type === "running") reset();
      else if (type === "message") say(data);
      else if (type === "reasoning") {
        thinking.hidden = false;
        thoughts.add(text(data.delta ?? data.text ?? ""));
      } else if (type === "progress") {
        const part = data.percent ?? (data.total ? (100 * data.done) / data.total : null);
        if (!Number.isFinite(part)) return;
        bar.hidden = false;
        bar.value = part;
        bar.title = typeof data.message === "string" ? data.message : "";
      } else if (type === "tool_call" || type === "tool_result") tool(type, data);
      else if (type === "citation") beside.append(h("li", null, h("q", null, text(data.quote)), " ", h("small", null, text(data.source ?? data.document_id))));
      else if (type === "usage") {
        used.hidden = false;
        used.textContent = spent(data);
      } else if (type === "done" || type === "error" || type === "canceled") {
        bar.hidden = true;
        nothing.textContent = "It said nothing on its way.";
      }
    },
    get text() {
      return answer.text;
    },
  };
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function spent(data) {
  const numbers = Object.entries(data).filter(([name, value]) => Number.isFinite(value) && name !== "attempt" && name !== "round");
  const words = numbers.map(([name, value]) => (name.endsWith("_ms") ? `${name.slice(0, -3).replaceAll("_", " ")} ${duration(value)}` : `${name.replaceAll("_", " ")} ${count(value)}`));
  return [typeof data.model === "string" && visible(data.model), ...words].filter(Boolean).join(" · ");
}

/** A text that grows piece by piece, painted once a frame; it stays at its end while one looks there. */
function flowing(label, style) {
  const inside = document.createTextNode("");
  const node = h("pre", { class: style, dir: "auto", role: "region", "aria-label": label, tabindex: "0", hidden: true }, inside);
  let waiting = "";
  let whole = "";
  let asked = 0;
  function paint() {
    asked = 0;
    const atEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 24;
    inside.appendData(visible(waiting));
    waiting = "";
    node.hidden = !whole;
    if (atEnd) node.scrollTop = node.scrollHeight;
  }
  return {
    node,
    get text() {
      return whole;
    },
    get empty() {
      return !whole;
    },
    add(piece) {
      whole += piece;
      waiting += piece;
      asked ||= requestAnimationFrame(paint);
    },
    clear() {
      whole = waiting = inside.data = "";
      node.hidden = true;
    },
  };
}
