// Webhook deliveries: pending ones, and dead-lettered ones with a redrive.

import { get, post, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { poll } from "../../lib/live.js";
import { actionButton, badge, confirmDialog, jsonTree, pageHead, runAction, table, timeAgo } from "../../components/ui.js";

const ROOT = "/api/workflow/webhooks";
const jobLink = (id) => h("a", { href: url`/ui/workflows/${id}` }, id);
const timeAt = (time) => timeAgo(Date.parse(time));
const longText = (text) => h("span", { class: "long-text" }, text);

export default async function webhooks({ session }) {
  const pendingCard = h("section", { class: "card" });
  const deadCard = h("section", { class: "card" });
  const canRedrive = session.can("redrive");
  const expanded = new Set();
  let limit = 50;
  let previous = "";

  async function load() {
    const [deliveries, deadLetters] = await Promise.all([get(`${ROOT}/deliveries`), get(`${ROOT}/dlq`, { limit })]);
    const current = JSON.stringify([deliveries, deadLetters]);
    if (current === previous) return; // unchanged: buttons are not replaced while the user clicks
    previous = current;
    replace(pendingCard, h("h2", null, `Pending: ${deliveries.total}`), table({
      columns: [
        { name: "Job", cell: (row) => jobLink(row.job_id) },
        { name: "To", cell: (row) => longText(row.url) },
        { name: "Waiting", align: "right", cell: (row) => row.waiting },
        { name: "Attempts", align: "right", cell: (row) => row.attempts },
        { name: "Last error", wide: true, cell: (row) => row.last?.error },
        { name: "Next attempt", align: "right", cell: (row) => (row.under_way ? "now" : timeAt(row.next_at)) },
      ],
      rows: deliveries.items,
      empty: "All delivered.",
    }));
    const { total, has_more: hasMore } = deadLetters.pagination;
    replace(deadCard,
      h("div", { class: "card-head" }, h("h2", null, `Failed: ${total}`), canRedrive && deadLetters.items.some(canSend) && actionButton("Send all again", (button) => sendAll(button, total))),
      deadLetters.items.length ? deadLetters.items.map(deadLetterNode) : h("p", { class: "empty" }, "None."),
      hasMore && limit < 500 && actionButton("More", (button) => ((limit = Math.min(limit * 3, 500)), runAction(button, load))));
  }

  function deadLetterNode({ event_id: id, event_type: type, job_id: job, redrive, attempts_detail: attempts, ...rest }) {
    const node = h("details", { class: "item", open: expanded.has(id), onToggle: () => expanded[node.open ? "add" : "delete"](id) },
      h("summary", null, h("code", null, type), ` ${job} `, h("small", null, attempts.at(-1)?.error, " · ", timeAt(rest.failed_at)), " ",
        redrive.status !== "none" && badge(redrive.status, `sent again: ${redrive.status}`)),
      h("div", { class: "stack" },
        h("div", { class: "row" }, jobLink(job), longText(rest.url), canRedrive && canSend({ redrive }) && actionButton("Send again", (button) => sendAgain(button, { event_ids: [id] }), { class: "small" })),
        table({
          columns: [
            { name: "Attempt", cell: (row) => row.attempt },
            { name: "Response", cell: (row) => row.status ?? "none" },
            { name: "Error", cell: (row) => row.error },
            { name: "Time", align: "right", cell: (row) => timeAt(row.at) },
          ],
          rows: attempts,
        }),
        jsonTree(rest.payload)));
    return node;
  }

  async function sendAgain(button, body) {
    if (await runAction(button, post(`${ROOT}/dlq/redrive`, body), "Delivery scheduled.")) await load();
  }

  async function sendAll(button, total) {
    const text = "Each delivery is sent once more, unchanged and with a new signature. Deliveries that have succeeded meanwhile are skipped.";
    const typed = total > 10 ? String(total) : null;
    if (await confirmDialog({ title: "Send all failed deliveries again?", text, typed, yes: "Send again", danger: false })) await sendAgain(button, { all: true });
  }

  await load();
  return { title: "Webhooks", node: h("div", { class: "stack" }, pageHead("Webhooks"), pendingCard, deadCard), destroy: poll(load) };
}

const canSend = ({ redrive: { status } }) => status === "none" || status === "failed";
