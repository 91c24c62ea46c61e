// Audit log of administrative actions. An entry is written before its action.

import { get } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { clock } from "../lib/format.js";
import { actionButton, pageHead, runAction, table } from "../components/ui.js";

export default async function auditLog() {
  let items = [];
  let next = null;
  const search = h("input", { type: "search", placeholder: "Filter entries", "aria-label": "Filter entries", dataset: { search: "" }, onInput: draw });
  const list = h("section", { class: "card" });

  async function load() {
    const page = await get("/v1/trail", { limit: 200, before: next });
    items.push(...page.items);
    next = page.next;
    draw();
  }

  function draw() {
    const filter = search.value.trim().toLowerCase();
    replace(list, table({
      caption: "Newest first. An entry is written before its action, so actions that failed are listed as well.",
      columns: [
        { name: "Time", cell: (row) => clock(row.ts) },
        { name: "User", cell: (row) => h("span", { title: row.who }, row.name || row.who) },
        { name: "Action", cell: (row) => h("code", null, row.action) },
        { name: "Target", cell: (row) => h("span", { class: "long-text" }, row.target) },
        { name: "Client", wide: true, cell: (row) => row.remote },
        { name: "Request", wide: true, cell: (row) => h("code", { title: row.request_id }, row.request_id.slice(0, 8)) },
      ],
      rows: items.filter((row) => Object.values(row).join(" ").toLowerCase().includes(filter)),
    }), next && actionButton("Load older entries", (button) => runAction(button, load)));
  }

  await load();
  return { title: "Audit log", node: h("div", { class: "stack" }, pageHead("Audit log", search), list) };
}
