// Webhooks: what is on its way, what was given up, and sending that again.

import { get, post, url } from "../api.js";
import { h, replace } from "../dom.js";
import { act, badge, confirmDialog, jsonTree, pageHead, table, when } from "../ui.js";
import { often, press } from "./parts.js";

const ROOT = "/api/workflow/webhooks";
const link = (id) => h("a", { href: url`/ui/workflows/${id}` }, id);
const at = (time) => when(Date.parse(time));
const long = (text) => h("span", { class: "long" }, text);

export default async function webhooks({ me }) {
  const way = h("section", { class: "card" });
  const dead = h("section", { class: "card" });
  const may = me.may("redrive");
  const open = new Set();
  let limit = 50;
  let before = "";

  async function load() {
    const [under, given] = await Promise.all([get(`${ROOT}/deliveries`), get(`${ROOT}/dlq`, { limit })]);
    const now = JSON.stringify([under, given]);
    if (now === before) return; // nothing is taken from under the mouse for nothing
    before = now;
    replace(way, h("h2", null, `On their way: ${under.total}`), table({
      columns: [
        { name: "Job", cell: (row) => link(row.job_id) },
        { name: "To", cell: (row) => long(row.url) },
        { name: "Waiting", align: "right", cell: (row) => row.waiting },
        { name: "Tries", align: "right", cell: (row) => row.attempts },
        { name: "Last", wide: true, cell: (row) => row.last?.error },
        { name: "Next", align: "right", cell: (row) => (row.under_way ? "now" : at(row.next_at)) },
      ],
      rows: under.items,
      empty: "Everything was told.",
    }));
    const { total, has_more: more } = given.pagination;
    replace(dead,
      h("div", { class: "card-head" }, h("h2", null, `Given up: ${total}`), may && given.items.some(unsent) && press("Send all again", (button) => all(button, total))),
      given.items.length ? given.items.map(letter) : h("p", { class: "empty" }, "None."),
      more && limit < 500 && press("More", (button) => ((limit = Math.min(limit * 3, 500)), act(button, load))));
  }

  function letter({ event_id: id, event_type: type, job_id: job, redrive, attempts_detail: tries, ...of }) {
    const node = h("details", { class: "item", open: open.has(id), onToggle: () => open[node.open ? "add" : "delete"](id) },
      h("summary", null, h("code", null, type), ` ${job} `, h("small", null, tries.at(-1)?.error, " · ", at(of.failed_at)), " ",
        redrive.status !== "none" && badge(redrive.status, `sent again: ${redrive.status}`)),
      h("div", { class: "stack" },
        h("div", { class: "row" }, link(job), long(of.url), may && unsent({ redrive }) && press("Send again", (button) => send(button, { event_ids: [id] }), { class: "small" })),
        table({
          columns: [
            { name: "Try", cell: (row) => row.attempt },
            { name: "Answer", cell: (row) => row.status ?? "none" },
            { name: "Error", cell: (row) => row.error },
            { name: "When", align: "right", cell: (row) => at(row.at) },
          ],
          rows: tries,
        }),
        jsonTree(of.payload)));
    return node;
  }

  async function send(button, body) {
    if (await act(button, post(`${ROOT}/dlq/redrive`, body), "On its way again.")) await load();
  }

  async function all(button, total) {
    const text = "Each once, byte for byte, with a fresh signature; what has arrived meanwhile is left alone.";
    const typed = total > 10 ? String(total) : null;
    if (await confirmDialog({ title: "Send all of them again?", text, typed, yes: "Send again", danger: false })) await send(button, { all: true });
  }

  await load();
  return { title: "Webhooks", node: h("div", { class: "stack" }, pageHead("Webhooks"), way, dead), destroy: often(load) };
}

const unsent = ({ redrive: { status } }) => status === "none" || status === "failed";
