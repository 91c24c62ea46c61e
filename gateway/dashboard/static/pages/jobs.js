// All jobs: search, filters that live in the address, new ones as they come.

import { url } from "../api.js";
import { h, replace } from "../dom.js";
import { ago, clock, count, duration, short, visible } from "../format.js";
import { live } from "../live.js";
import { act, badge, errorBox, field, pageHead, rowLink } from "../ui.js";
import { AGES, ENDED, JobList } from "./job_list.js";
import { cancelMatching, exportJobs } from "./jobs_bulk.js";
import { windowed } from "./windowed.js";

const STATUSES = ["queued", "running", "done", "error", "canceled"];
const TASKS = ["chat", "plan", "code", "tool", "rag", "embed"];
const AGE_WORDS = { "15m": "Last 15 minutes", "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days" };
const REFRESH_MS = 1500;

export default async function page({ query, setQuery, me, navigate }) {
  const filters = {
    q: query.get("q") ?? "",
    status: query.getAll("status").filter((one) => STATUSES.includes(one)),
    task: query.getAll("task").filter((one) => TASKS.includes(one)),
    age: Object.hasOwn(AGES, query.get("age")) ? query.get("age") : "",
    since: query.get("since") ?? "",
    until: query.get("until") ?? "",
    tenant: query.get("tenant") ?? "",
  };
  const told = h("p", { class: "told" });
  const fresh = h("button", { type: "button", class: "fresh", hidden: true, onClick: () => (scrollTo(0, 0), list.reveal()) });
  const rest = h("div", { class: "rest" });
  const rows = windowed({
    caption: "Jobs, newest first",
    columns: [{ name: "Job" }, { name: "Status" }, { name: "Task", class: "wide" }, { name: "Accepted" }, { name: "Took", class: "num wide" }, { name: "What went wrong", class: "wide why" }],
    make: row,
    onEnd: () => list.next && !list.loading && !list.error && list.more(),
  });
  const list = new JobList(filters, show);
  let timer = 0;
  let due = 0;

  function show() {
    rows.show(list.jobs);
    rows.node.hidden = !list.jobs.length;
    fresh.hidden = !list.fresh.length && !list.missed;
    fresh.textContent = list.missed ? "Many new – show" : `${count(list.fresh.length)} new – show`;
    const some = list.jobs.length;
    told.textContent = list.loading && !some ? "Searching…" : `${count(some)}${list.next ? "+" : ""} ${some === 1 ? "job" : "jobs"}` + (narrowed() && list.lookedAt > some ? ` among ${count(list.lookedAt)}` : "");
    replace(
      rest,
      list.error && errorBox(list.error),
      !list.loading && !list.error && !some && h("p", { class: "empty" }, list.next ? "Nothing found so far." : narrowed() ? "No job fits." : ["No jobs yet. ", h("a", { href: "/ui/playground" }, "Try one.")]),
      (list.next || list.error) && h("button", { type: "button", disabled: list.loading, onClick: () => list.more(!some) }, list.loading ? "Reading…" : some ? "Load more" : "Search on"),
    );
  }

  const narrowed = () => Object.values(filters).some((value) => value.length);

  function search() {
    clearTimeout(timer);
    setQuery(filters);
    list.restart(filters);
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(search, 250);
  }

  /** New jobs do not push away what somebody reads. */
  const reading = () => scrollY > 120 || document.activeElement?.closest?.("tbody");
  const refresh = () => {
    due ||= setTimeout(() => {
      due = 0;
      list.refresh(reading());
    }, REFRESH_MS);
  };
  const offs = [
    live.on("jobs", ({ jobs, more }) => {
      if (list.loading && !list.jobs.length) return;
      list.take(jobs, reading());
      if (more || filters.q || filters.tenant) refresh();
    }),
    live.on("again", refresh),
  ];

  const q = h("input", { type: "search", value: filters.q, placeholder: "Id, or words in payload, result or error", "aria-label": "Search", dataset: { search: "" }, onInput: () => ((filters.q = q.value.trim()), later()) });
  const between = h(
    "div",
    { class: "row", hidden: !(filters.since || filters.until) },
    ["since", "until"].map((name) => field(name === "since" ? "From" : "To", h("input", { type: "datetime-local", value: filters[name], onChange: (event) => ((filters[name] = event.target.value), search()) }))),
  );
  const age = h(
    "select",
    {
      "aria-label": "Time",
      onChange: () => {
        between.hidden = age.value !== "-";
        if (between.hidden) filters.since = filters.until = "";
        filters.age = Object.hasOwn(AGES, age.value) ? age.value : "";
        search();
      },
    },
    h("option", { value: "" }, "Any time"),
    Object.entries(AGE_WORDS).map(([value, words]) => h("option", { value }, words)),
    h("option", { value: "-" }, "Between…"),
  );
  age.value = filters.since || filters.until ? "-" : filters.age;
  const tenant = me.reads("all") && h("input", { value: filters.tenant, placeholder: "Tenant", "aria-label": "Tenant", class: "tenant", onInput: () => ((filters.tenant = tenant.value.trim()), later()) });
  const button = (words, deed, props) => {
    const node = h("button", { type: "button", ...props, onClick: () => act(node, () => deed((now) => (node.textContent = now))).finally(() => (node.textContent = words)) }, words);
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
        button("JSON", (say) => exportJobs(list, "json", say), { class: "small", title: "Save what fits as JSON" }),
        button("CSV", (say) => exportJobs(list, "csv", say), { class: "small", title: "Save what fits as CSV" }),
        me.may("cancel") && button("Cancel matching…", (say) => cancelMatching(list, filters.status, say).then(() => list.restart(filters)), { class: "small danger" }),
        me.may("submit") && h("a", { class: "button primary small", href: "/ui/playground" }, "New job"),
      ),
      h(
        "form",
        { class: "filters", role: "search", onSubmit: (event) => (event.preventDefault(), search()) },
        h("div", { class: "row" }, q, age, tenant),
        between,
        h("div", { class: "row" }, chips("Status", STATUSES, filters.status, search, badge), chips("Task", TASKS, filters.task, search)),
      ),
      h("div", { class: "row between" }, told, fresh),
      h("div", { class: "card flush" }, rows.node, rest),
    ),
    destroy() {
      clearTimeout(timer);
      clearTimeout(due);
      offs.forEach((off) => off());
      rows.destroy();
    },
    keys: { n: () => me.may("submit") && navigate("/ui/playground") },
    help: [["n", "new job"]],
  };
}

/** Some of a few; none pressed stands for all. */
function chips(label, all, chosen, changed, look = (one) => one) {
  return h(
    "div",
    { class: "chips", role: "group", "aria-label": label },
    all.map((one) => {
      const node = h(
        "button",
        {
          type: "button",
          "aria-pressed": String(chosen.includes(one)),
          onClick() {
            if (chosen.includes(one)) chosen.splice(chosen.indexOf(one), 1);
            else chosen.push(one);
            node.setAttribute("aria-pressed", String(chosen.includes(one)));
            changed();
          },
        },
        look(one),
      );
      return node;
    }),
  );
}

/** A row that is written again only where something has changed. */
function row(job) {
  const status = h("td");
  const took = h("td", { class: "num wide" });
  const why = h("td", { class: "wide why" });
  const time = h("time", { title: clock(job.created_ts, { date: true }), dataset: { ago: job.created_ts } });
  const tr = h(
    "tr",
    null,
    h("td", null, rowLink(url`/ui/jobs/${job.job_id}`, h("code", { title: job.job_id }, short(job.job_id)))),
    status,
    h("td", { class: "wide" }, visible(job.task)),
    h("td", null, time),
    took,
    why,
  );
  let shown = "";
  return {
    tr,
    update(now) {
      const words = ago(now.created_ts);
      if (time.textContent !== words) time.textContent = words;
      const version = `${now.status} ${now.updated_ts}`;
      if (version === shown) return;
      shown = version;
      replace(status, badge(now.status));
      took.textContent = ENDED.has(now.status) ? duration(now.updated_ts - now.created_ts) : "";
      const said = now.error ? visible([now.error.kind, now.error.message].filter(Boolean).join(": ")) : "";
      why.textContent = said;
      why.title = said;
    },
  };
}
