// One key each, never while somebody types. A page may bring keys of its own: {keys: {a: fn},
// help: [["a", "approve"]]}.

import { h } from "./dom.js";
import { showDialog } from "./ui.js";

const GO = {
  o: ["/ui", "overview"], j: ["/ui/jobs", "jobs"], p: ["/ui/playground", "playground"],
  f: ["/ui/workflows", "workflows"], i: ["/ui/images", "images"], b: ["/ui/bullmq", "BullMQ"],
  w: ["/ui/workers", "workers"], q: ["/ui/queues", "queues"], d: ["/ui/dead", "dead letters"],
  h: ["/ui/webhooks", "webhooks"], c: ["/ui/doctor", "doctor"], k: ["/ui/keys", "keys"], t: ["/ui/trail", "trail"],
};
const GO_MS = 1500;

export function keyboard({ navigate, live, page }) {
  let going = 0;
  const own = {
    "?": () => help(page()),
    "/": () => document.querySelector("[data-search]")?.focus(),
    ".": () => live.pause(),
    g: () => (going = Date.now()),
    j: () => step(1),
    k: () => step(-1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable], dialog")) {
      if (event.key === "Escape") event.target.blur?.();
      return;
    }
    const place = Date.now() - going < GO_MS && GO[event.key];
    going = 0;
    const deed = place ? () => navigate(place[0]) : (page()?.keys?.[event.key] ?? own[event.key]);
    if (!deed) return;
    event.preventDefault();
    deed(event);
  });
}

/** To the next row, or the one before. */
function step(by) {
  const rows = [...document.querySelectorAll("main [data-nav]")].filter((row) => row.offsetParent);
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function help(page) {
  const list = (rows) => h("dl", { class: "keys" }, rows.map(([key, words]) => [h("dt", null, key.split(" ").map((k) => h("kbd", null, k))), h("dd", null, words)]));
  showDialog(
    "Keys",
    page?.help && [h("h3", null, "This page"), list(page.help)],
    h("h3", null, "Everywhere"),
    list([["?", "this help"], ["/", "search"], ["j", "next row"], ["k", "row before"], ["Enter", "open it"], [".", "pause or go on"]]),
    h("h3", null, "Go to"),
    list(Object.entries(GO).map(([key, [, name]]) => [`g ${key}`, name])),
  );
}
