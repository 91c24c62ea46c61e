// Every event of a job, those of one kind in a row folded into one line.

import { h } from "../dom.js";
import { clock, duration, visible } from "../format.js";
import { jsonTree, members } from "../ui.js";

const MOST = 400; // lines in the page
const AT_ONCE = 100;

export function eventLog() {
  const list = h("ol", { class: "log" });
  const left = h("p", { class: "dim", hidden: true });
  const lines = [];
  let group = null;
  let begin = null;
  let dropped = 0;

  function open({ type, ts, step }) {
    const times = h("b");
    const preview = h("span", { class: "preview" });
    const inside = h("div");
    const node = h(
      "li",
      null,
      h(
        "details",
        null,
        h(
          "summary",
          null,
          h("time", { title: clock(ts, { date: true, fraction: true }) }, `+${duration(ts - begin)}`),
          h("span", { class: "type", dataset: { type } }, visible(type)),
          times,
          h("span", { class: "step" }, visible(step)),
          preview,
        ),
        inside,
      ),
    );
    group = { type, step, times, preview, inside, events: [], shown: 0, node };
    const mine = group;
    node.firstChild.addEventListener("toggle", () => fill(mine, AT_ONCE));
    list.append(node);
    if (list.childElementCount <= MOST) return;
    list.firstChild.remove();
    dropped += 1;
    left.hidden = false;
    left.textContent = `${dropped} earlier lines are left out; copy to have them all.`;
  }

  return {
    node: h("div", null, left, list),
    add(event, line) {
      begin ??= event.ts;
      lines.push(line);
      if (group?.type !== event.type || group.step !== event.step) open(event);
      group.events.push(line);
      if (group.events.length > 1) group.times.textContent = `×${group.events.length}`;
      group.preview.textContent = visible(members(line).data ?? "").replace(/\s+/g, " ").slice(0, 160);
      if (group.node.firstChild.open) fill(group, 0);
    },
    get text() {
      return lines.join("\n");
    },
  };
}

/** Show a group's events; `most` 0: only those that came since, and not too many. */
function fill(group, most) {
  const upTo = Math.min(group.events.length, Math.max(group.shown, AT_ONCE) + (group.shown ? most : 0));
  if (!group.node.firstChild.open) return;
  group.more?.remove();
  for (; group.shown < upTo; group.shown += 1) group.inside.append(jsonTree(members(group.events[group.shown]).data ?? "null", { open: 1 }));
  const rest = group.events.length - group.shown;
  if (!rest) return;
  group.more = h("button", { type: "button", class: "link", onClick: () => fill(group, AT_ONCE) }, `${rest} more…`);
  group.inside.append(group.more);
}
