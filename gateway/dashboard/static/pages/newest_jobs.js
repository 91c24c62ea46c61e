// The newest jobs, as they change.

import { get, url } from "../api.js";
import { h, replace } from "../dom.js";
import { duration, short } from "../format.js";
import { badge, rowLink, when } from "../ui.js";

const SHOWN = 10;

export function newestJobs() {
  const known = new Map();
  const rows = new Map();
  const body = h("tbody");
  const empty = h("p", { class: "empty" }, "No job yet. The playground submits one.");
  const shown = h(
    "div",
    { class: "scroll", hidden: true },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, ["Job", "Task", "Status"].map((name) => h("th", { scope: "col" }, name)),
        h("th", { scope: "col", class: "num wide" }, "Took"), h("th", { scope: "col", class: "num" }, "Accepted"))),
      body,
    ),
  );
  const node = h("section", { class: "card", "aria-label": "Newest jobs" },
    h("div", { class: "card-head" }, h("h2", null, "Newest jobs"), h("a", { href: "/ui/jobs" }, "All jobs")), shown, empty);

  function show() {
    const newest = [...known.values()].sort((a, b) => b.created_ts - a.created_ts).slice(0, SHOWN);
    known.clear();
    for (const job of newest) known.set(job.job_id, job);
    for (const id of rows.keys()) if (!known.has(id)) rows.delete(id);
    const wanted = newest.map((job) => {
      const mark = job.status + job.updated_ts;
      let row = rows.get(job.job_id);
      if (!row) {
        row = { tr: h("tr"), mark: "" };
        rows.set(job.job_id, row);
      }
      if (row.mark !== mark) {
        row.mark = mark;
        // The link stays, and with it the focus.
        row.link ??= h("td", null, rowLink(url`/ui/jobs/${job.job_id}`, h("code", { title: job.job_id }, short(job.job_id))));
        replace(row.tr, row.link, h("td", null, job.task), h("td", null, badge(job.status)),
          h("td", { class: "num wide" }, ended(job) ? duration(job.updated_ts - job.created_ts) : "–"), h("td", { class: "num" }, when(job.created_ts)));
      }
      return row.tr;
    });
    wanted.forEach((tr, at) => body.children[at] === tr || body.insertBefore(tr, body.children[at] ?? null));
    while (body.children.length > wanted.length) body.lastChild.remove();
    shown.hidden = !newest.length;
    empty.hidden = newest.length > 0;
  }

  return {
    node,
    async load() {
      try {
        const { jobs } = await get("/v1/jobs", { limit: SHOWN });
        for (const job of jobs) known.set(job.job_id, job);
        show();
      } catch {
        // What is live still comes.
      }
    },
    changed({ jobs }) {
      for (const job of jobs) known.set(job.job_id, job);
      show();
    },
  };
}

const ended = (job) => job.status !== "queued" && job.status !== "running";
