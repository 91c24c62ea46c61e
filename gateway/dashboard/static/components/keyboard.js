// Keyboard shortcuts, ignored while the user types. A page may add its own: {keys: {a: fn},
// help: [["a", "approve"]]}.

import { h } from "../lib/dom.js";
import { showDialog } from "./ui.js";

/** Pages by the key that follows "g". */
const PAGES = {
  o: ["/ui", "overview"], j: ["/ui/jobs", "jobs"], p: ["/ui/playground", "playground"],
  f: ["/ui/workflows", "workflows"], i: ["/ui/images", "images"], b: ["/ui/bullmq", "BullMQ"],
  w: ["/ui/workers", "workers"], q: ["/ui/queues", "queues"], d: ["/ui/dead", "dead letters"],
  h: ["/ui/webhooks", "webhooks"], c: ["/ui/doctor", "health"], k: ["/ui/keys", "keys"], t: ["/ui/trail", "audit log"],
};
const SEQUENCE_MS = 1500;

export function installShortcuts({ navigate, live, page }) {
  let prefixAt = 0; // when "g" was pressed
  const globalKeys = {
    "?": () => showHelp(page()),
    "/": () => document.querySelector("[data-search]")?.focus(),
    ".": () => live.pause(),
    g: () => (prefixAt = Date.now()),
    j: () => focusRow(1),
    k: () => focusRow(-1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable], dialog")) {
      if (event.key === "Escape") event.target.blur?.();
      return;
    }
    const target = Date.now() - prefixAt < SEQUENCE_MS && PAGES[event.key];
    prefixAt = 0;
    const handler = target ? () => navigate(target[0]) : (page()?.keys?.[event.key] ?? globalKeys[event.key]);
    if (!handler) return;
    event.preventDefault();
    handler(event);
  });
}

/** Focus the next row (1) or the previous one (-1). */
function focusRow(offset) {
  const rows = [...document.querySelectorAll("main [data-nav]")].filter((row) => row.offsetParent);
  const index = rows.indexOf(document.activeElement);
  const next = rows[index < 0 ? (offset > 0 ? 0 : rows.length - 1) : index + offset];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function showHelp(page) {
  const list = (rows) => h("dl", { class: "keys" }, rows.map(([key, text]) => [h("dt", null, key.split(" ").map((k) => h("kbd", null, k))), h("dd", null, text)]));
  showDialog(
    "Keyboard shortcuts",
    page?.help && [h("h3", null, "This page"), list(page.help)],
    h("h3", null, "Everywhere"),
    list([["?", "this help"], ["/", "search"], ["j", "next row"], ["k", "previous row"], ["Enter", "open the row"], [".", "pause or resume updates"]]),
    h("h3", null, "Go to"),
    list(Object.entries(PAGES).map(([key, [, name]]) => [`g ${key}`, name])),
  );
}
