// The list of jobs: search, filters kept in the address, live updates.

import { url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { ago, clock, count, duration, plural, printable, shortId } from "../../lib/format.js";
import { live } from "../../lib/live.js";
import { badge, errorBox, field, pageHead, rowLink, runAction } from "../../components/ui.js";
import { virtualList } from "../../components/virtual_list.js";
import { cancelMatching, exportJobs } from "./bulk_actions.js";
import { AGES, ENDED, JobList } from "./job_list.js";

const STATUSES = ["queued", "running", "done", "error", "canceled"];
const TASKS = ["chat", "plan", "code", "tool", "rag", "embed"];
const AGE_LABELS = { "15m": "Last 15 minutes", "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days" };
const REFRESH_MS = 1500;

export default async function page({ query, setQuery, session, navigate }) {
  const filters = {
    q: query.get("q") ?? "",
    status: query.getAll("status").filter((value) => STATUSES.includes(value)),
    task: query.getAll("task").filter((value) => TASKS.includes(value)),
    age: Object.hasOwn(AGES, query.get("age")) ? query.get("age") : "",
    since: query.get("since") ?? "",
    until: query.get("until") ?? "",
    tenant: query.get("tenant") ?? "",
  };
  const status = h("p", { class: "list-status" });
  const newJobsButton = h("button", { type: "button", class: "new-jobs", hidden: true, onClick: () => (scrollTo(0, 0), list.reveal()) });
  const footer = h("div", { class: "list-footer" });
  const rows = virtualList({
    caption: "Jobs, newest first",
    columns: [{ name: "Job" }, { name: "Status" }, { name: "Task", class: "wide" }, { name: "Accepted" }, { name: "Total time", class: "num wide" }, { name: "Error", class: "wide reason" }],
    createRow: jobRow,
    onEnd: () => list.next && !list.loading && !list.error && list.loadMore(),
  });
  const list = new JobList(filters, show);
  let searchTimer = 0;
  let refreshTimer = 0;

  function show() {
    rows.show(list.jobs);
    rows.node.hidden = !list.jobs.length;
    newJobsButton.hidden = !list.pending.length && !list.missed;
    newJobsButton.textContent = list.missed ? "Many new jobs – show" : `${plural(list.pending.length, "new job")} – show`;
    const listed = list.jobs.length;
    status.textContent = list.loading && !listed ? "Searching…" : `${count(listed)}${list.next ? "+" : ""} ${listed === 1 ? "job" : "jobs"}` + (isFiltered() && list.scanned > listed ? ` found in the newest ${count(list.scanned)}` : "");
    replace(
      footer,
      list.error && errorBox(list.error),
      !list.loading && !list.error && !listed && h("p", { class: "empty" }, list.next ? "Nothing found so far." : isFiltered() ? ["No jobs match. ", h("a", { href: "/ui/jobs" }, "Clear filters")] : ["No jobs yet. ", h("a", { href: "/ui/playground" }, "Submit one")]),
      (list.next || list.error) && h("button", { type: "button", disabled: list.loading, onClick: () => list.loadMore(!listed) }, list.loading ? "Loading…" : listed ? "Load more" : "Search older jobs"),
    );
  }

  const isFiltered = () => Object.values(filters).some((value) => value.length);

  function search() {
    clearTimeout(searchTimer);
    setQuery(filters);
    list.restart(filters);
  }

  function searchSoon() {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(search, 250);
  }

  /** Whether the user is reading the list: new jobs are held back then. */
  const isReading = () => scrollY > 120 || document.activeElement?.closest?.("tbody");
  const refresh = () => {
    refreshTimer ||= setTimeout(() => {
      refreshTimer = 0;
      list.refresh(isReading());
    }, REFRESH_MS);
  };
  const unsubscribers = [
    live.on("jobs", ({ jobs, more }) => {
      if (list.loading && !list.jobs.length) return;
      list.apply(jobs, isReading());
      if (more || filters.q || filters.tenant) refresh();
    }),
    live.on("resync", refresh),
  ];

  const searchInput = h("input", { type: "search", value: filters.q, placeholder: "Id, or words in payload, result or error", "aria-label": "Search", dataset: { search: "" }, onInput: () => ((filters.q = searchInput.value.trim()), searchSoon()) });
  const dateRange = h(
    "div",
    { class: "row", hidden: !(filters.since || filters.until) },
    ["since", "until"].map((name) => field(name === "since" ? "From" : "To", h("input", { type: "datetime-local", value: filters[name], onChange: (event) => ((filters[name] = event.target.value), search()) }))),
  );
  const age = h(
    "select",
    {
      "aria-label": "Time",
      onChange: () => {
        dateRange.hidden = age.value !== "-";
        if (dateRange.hidden) filters.since = filters.until = "";
        filters.age = Object.hasOwn(AGES, age.value) ? age.value : "";
        search();
      },
    },
    h("option", { value: "" }, "Any time"),
    Object.entries(AGE_LABELS).map(([value, text]) => h("option", { value }, text)),
    h("option", { value: "-" }, "Custom range…"),
  );
  age.value = filters.since || filters.until ? "-" : filters.age;
  const tenant = session.canRead("all") && h("input", { value: filters.tenant, placeholder: "Tenant", "aria-label": "Tenant", class: "tenant", onInput: () => ((filters.tenant = tenant.value.trim()), searchSoon()) });
  const progressButton = (label, action, props) => {
    const node = h("button", { type: "button", ...props, onClick: () => runAction(node, () => action((text) => (node.textContent = text))).finally(() => (node.textContent = label)) }, label);
    return node;
  };

  list.restart(filters);
  return {
    title: "Jobs",
    node: h(
      "div",
      { class: "jobs" },
      pageHead(
        "Jobs",
        progressButton("Export JSON", (onProgress) => exportJobs(list, "json", onProgress), { class: "small" }),
        progressButton("Export CSV", (onProgress) => exportJobs(list, "csv", onProgress), { class: "small" }),
        session.can("cancel") && progressButton("Cancel matching…", (onProgress) => cancelMatching(list, filters.status, onProgress).then(() => list.restart(filters)), { class: "small danger" }),
        session.can("submit") && h("a", { class: "button primary small", href: "/ui/playground" }, "New job"),
      ),
      h(
        "form",
        { class: "filters", role: "search", onSubmit: (event) => (event.preventDefault(), search()) },
        h("div", { class: "row" }, searchInput, age, tenant),
        dateRange,
        h("div", { class: "row" }, filterButtons("Status", STATUSES, filters.status, search, badge), filterButtons("Task", TASKS, filters.task, search)),
      ),
      h("div", { class: "row between" }, status, newJobsButton),
      h("div", { class: "card flush" }, rows.node, footer),
    ),
    destroy() {
      clearTimeout(searchTimer);
      clearTimeout(refreshTimer);
      unsubscribers.forEach((unsubscribe) => unsubscribe());
      rows.destroy();
    },
    keys: { n: () => session.can("submit") && navigate("/ui/playground") },
    help: [["n", "new job"]],
  };
}

/** Toggle buttons; with none pressed, all values match. */
function filterButtons(label, values, selected, onChange, render = (value) => value) {
  return h(
    "div",
    { class: "chips", role: "group", "aria-label": label },
    values.map((value) => {
      const node = h(
        "button",
        {
          type: "button",
          "aria-pressed": String(selected.includes(value)),
          onClick() {
            if (selected.includes(value)) selected.splice(selected.indexOf(value), 1);
            else selected.push(value);
            node.setAttribute("aria-pressed", String(selected.includes(value)));
            onChange();
          },
        },
        render(value),
      );
      return node;
    }),
  );
}

/** A table row that updates only the cells that have changed. */
function jobRow(job) {
  const status = h("td");
  const durationCell = h("td", { class: "num wide" });
  const reason = h("td", { class: "wide reason" });
  const time = h("time", { title: clock(job.created_ts, { date: true }), dataset: { ago: job.created_ts } });
  const tr = h(
    "tr",
    null,
    h("td", null, rowLink(url`/ui/jobs/${job.job_id}`, h("code", { title: job.job_id }, shortId(job.job_id)))),
    status,
    h("td", { class: "wide" }, printable(job.task)),
    h("td", null, time),
    durationCell,
    reason,
  );
  let shownVersion = "";
  return {
    tr,
    update(latest) {
      const text = ago(latest.created_ts);
      if (time.textContent !== text) time.textContent = text;
      const version = `${latest.status} ${latest.updated_ts}`;
      if (version === shownVersion) return;
      shownVersion = version;
      replace(status, badge(latest.status));
      durationCell.textContent = ENDED.has(latest.status) ? duration(latest.updated_ts - latest.created_ts) : "";
      const errorText = latest.error ? printable([latest.error.kind, latest.error.message].filter(Boolean).join(": ")) : "";
      reason.textContent = errorText;
      reason.title = errorText;
    },
  };
}
