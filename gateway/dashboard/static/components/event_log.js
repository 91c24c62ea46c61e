// All events of a job; consecutive events of the same type and step share one line.

import { h } from "../lib/dom.js";
import { clock, duration, plural, printable } from "../lib/format.js";
import { jsonTree, members } from "./ui.js";

const MAX_LINES = 400; // lines shown
const BATCH = 100;

export function eventLog() {
  const list = h("ol", { class: "log" });
  const droppedNote = h("p", { class: "dim", hidden: true });
  const lines = [];
  let group = null;
  let startTs = null;
  let dropped = 0;

  function openGroup({ type, ts, step }) {
    const countNode = h("b");
    const previewNode = h("span", { class: "preview" });
    const body = h("div");
    const node = h(
      "li",
      null,
      h(
        "details",
        null,
        h(
          "summary",
          null,
          h("time", { title: clock(ts, { date: true, fraction: true }) }, `+${duration(ts - startTs)}`),
          h("span", { class: "type", dataset: { type } }, printable(type)),
          countNode,
          h("span", { class: "step" }, printable(step)),
          previewNode,
        ),
        body,
      ),
    );
    group = { type, step, countNode, previewNode, body, events: [], shown: 0, node };
    const opened = group;
    node.firstChild.addEventListener("toggle", () => showEvents(opened, BATCH));
    list.append(node);
    if (list.childElementCount <= MAX_LINES) return;
    list.firstChild.remove();
    dropped += 1;
    droppedNote.hidden = false;
    droppedNote.textContent = `${plural(dropped, "earlier line")} not shown. Use Copy all to get all events.`;
  }

  return {
    node: h("div", null, droppedNote, list),
    add(event, line) {
      startTs ??= event.ts;
      lines.push(line);
      if (group?.type !== event.type || group.step !== event.step) openGroup(event);
      group.events.push(line);
      if (group.events.length > 1) group.countNode.textContent = `×${group.events.length}`;
      group.previewNode.textContent = printable(members(line).data ?? "").replace(/\s+/g, " ").slice(0, 160);
      if (group.node.firstChild.open) showEvents(group, 0);
    },
    get text() {
      return lines.join("\n");
    },
  };
}

/** Show up to `most` further events of a group; 0: only fill the first batch. */
function showEvents(group, most) {
  const end = Math.min(group.events.length, Math.max(group.shown, BATCH) + (group.shown ? most : 0));
  if (!group.node.firstChild.open) return;
  group.more?.remove();
  for (; group.shown < end; group.shown += 1) group.body.append(jsonTree(members(group.events[group.shown]).data ?? "null", { open: 1 }));
  const rest = group.events.length - group.shown;
  if (!rest) return;
  group.more = h("button", { type: "button", class: "link", onClick: () => showEvents(group, BATCH) }, `${rest} more…`);
  group.body.append(group.more);
}
