// Card of the newest jobs, kept up to date.

import { get, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { duration, shortId } from "../../lib/format.js";
import { badge, rowLink, timeAgo } from "../../components/ui.js";

const LIMIT = 10;

export function newestJobs() {
  const jobsById = new Map();
  const rows = new Map();
  const body = h("tbody");
  const emptyNote = h("p", { class: "empty" }, "No jobs yet. Submit one in the playground.");
  const tableNode = h(
    "div",
    { class: "scroll", hidden: true },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, ["Job", "Task", "Status"].map((name) => h("th", { scope: "col" }, name)),
        h("th", { scope: "col", class: "num wide" }, "Total time"), h("th", { scope: "col", class: "num" }, "Accepted"))),
      body,
    ),
  );
  const node = h("section", { class: "card", "aria-label": "Newest jobs" },
    h("div", { class: "card-head" }, h("h2", null, "Newest jobs"), h("a", { href: "/ui/jobs" }, "All jobs")), tableNode, emptyNote);

  function render() {
    const newest = [...jobsById.values()].sort((a, b) => b.created_ts - a.created_ts).slice(0, LIMIT);
    jobsById.clear();
    for (const job of newest) jobsById.set(job.job_id, job);
    for (const id of rows.keys()) if (!jobsById.has(id)) rows.delete(id);
    const newRows = newest.map((job) => {
      const version = job.status + job.updated_ts;
      let row = rows.get(job.job_id);
      if (!row) {
        row = { tr: h("tr"), version: "" };
        rows.set(job.job_id, row);
      }
      if (row.version !== version) {
        row.version = version;
        // The link is kept, so that it keeps the focus.
        row.link ??= h("td", null, rowLink(url`/ui/jobs/${job.job_id}`, h("code", { title: job.job_id }, shortId(job.job_id))));
        replace(row.tr, row.link, h("td", null, job.task), h("td", null, badge(job.status)),
          h("td", { class: "num wide" }, hasEnded(job) ? duration(job.updated_ts - job.created_ts) : "–"), h("td", { class: "num" }, timeAgo(job.created_ts)));
      }
      return row.tr;
    });
    newRows.forEach((tr, index) => body.children[index] === tr || body.insertBefore(tr, body.children[index] ?? null));
    while (body.children.length > newRows.length) body.lastChild.remove();
    tableNode.hidden = !newest.length;
    emptyNote.hidden = newest.length > 0;
  }

  return {
    node,
    async load() {
      try {
        const { jobs } = await get("/v1/jobs", { limit: LIMIT });
        for (const job of jobs) jobsById.set(job.job_id, job);
        render();
      } catch {
        // Live updates still arrive.
      }
    },
    update({ jobs }) {
      for (const job of jobs) jobsById.set(job.job_id, job);
      render();
    },
  };
}

const hasEnded = (job) => job.status !== "queued" && job.status !== "running";
