// Dead letters in groups of similar failures: inspect, redrive, purge.

import { del, get, getText, post, queryString, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { count, plural, printable, shortId } from "../lib/format.js";
import { live } from "../lib/live.js";
import { badge, confirmDialog, copyButton, errorBox, field, jsonTree, members, pageHead, runAction, table, timeAgo, toast } from "../components/ui.js";

const REASONS = {
  attempts_exhausted: "attempts used up",
  expired_before_start: "expired before it started",
  job_missing_or_expired: "job missing or expired",
  job_keys_corrupt: "job record corrupt",
  message_without_job_id: "message without a job id",
};
const BATCH = 1000;
const REFRESH_MS = 2000;

export default async function page({ query, setQuery, session }) {
  const canRedrive = session.can("redrive");
  const status = h("p", { class: "list-status", role: "status" });
  const groups = h("div", { class: "stack" });
  let openGroup = query.get("fingerprint") ?? "";
  let knownTotal = null;
  let timer = 0;

  async function load() {
    try {
      const response = await get("/v1/dlq/groups");
      knownTotal = response.total;
      status.textContent = response.total
        ? `${plural(response.total, "dead letter")} in ${plural(response.groups.length, "group")}` + (response.complete ? "" : `; only the newest ${count(response.looked_at)} were scanned`)
        : "";
      replace(groups, response.groups.length ? response.groups.map(groupCard) : h("p", { class: "empty card" }, "No dead letters."));
    } catch (error) {
      replace(groups, errorBox(error));
    }
  }

  function groupCard(group) {
    const list = h("div");
    const details = h(
      "details",
      { class: "card group", open: openGroup === group.fingerprint },
      h(
        "summary",
        null,
        h("b", { class: "count" }, count(group.count)),
        h("span", { class: "failure" }, h("b", null, printable(group.kind ?? REASONS[group.reason] ?? group.reason)), " ", printable(group.message ?? "")),
        h("span", { class: "row" }, group.task && badge("task", printable(group.task)), h("small", null, REASONS[group.reason] ?? printable(group.reason), " · last ", timeAgo(group.newest_ts))),
      ),
      canRedrive &&
        h(
          "div",
          { class: "row group-actions" },
          h("button", { type: "button", onClick: (event) => redriveAll(event.currentTarget, group) }, group.count === 1 ? "Redrive…" : `Redrive all ${count(group.count)}…`),
          h("button", { type: "button", class: "danger", onClick: (event) => purgeAll(event.currentTarget, group) }, "Purge…"),
        ),
      list,
    );
    const onToggle = () => {
      if (details.open) loadEntries(list, group, null);
      else if (openGroup === group.fingerprint) openGroup = "";
      if (details.open) openGroup = group.fingerprint;
      setQuery({ fingerprint: openGroup });
    };
    details.addEventListener("toggle", onToggle);
    return details;
  }

  async function loadEntries(node, group, before) {
    node.querySelector(".next")?.remove();
    if (!before) replace(node, h("p", { class: "dim" }, "Loading…"));
    try {
      const page = await get("/v1/dlq", { fingerprint: group.fingerprint, limit: 50, before });
      if (!before) node.replaceChildren();
      node.append(
        table({
          caption: before ? null : "Newest first",
          columns: [
            { name: "Dead letter", cell: (entry) => expandButton(entry) },
            { name: "Job", cell: (entry) => (entry.job_id ? h("a", { href: url`/ui/jobs/${entry.job_id}` }, h("code", { title: entry.job_id }, shortId(printable(entry.job_id)))) : "–") },
            { name: "Dead-lettered", wide: true, cell: (entry) => timeAgo(entry.ts) },
            { name: "Attempts", align: "right", wide: true, cell: (entry) => entry.attempts },
            { name: "Last error", wide: true, cell: (entry) => h("span", { class: "reason" }, printable(entry.last_error?.message ?? "").slice(0, 300)) },
            { name: h("span", { class: "visually-hidden" }, "Actions"), cell: (entry) => canRedrive && h("span", { class: "row end" }, h("button", { type: "button", class: "small", onClick: (event) => redriveOne(event, entry) }, "Redrive"), h("button", { type: "button", class: "small danger", onClick: (event) => purgeOne(event, entry) }, "Purge")) },
          ],
          rows: page.items,
          empty: before ? "No more." : "These dead letters no longer exist.",
        }),
      );
      if (page.next) node.append(h("button", { type: "button", class: "next", onClick: () => loadEntries(node, group, page.next) }, "Load more"));
    } catch (error) {
      replace(node, errorBox(error));
    }
  }

  /** A button that expands a dead letter: errors and payload. */
  function expandButton(entry) {
    const button = h("button", { type: "button", class: "link", dataset: { nav: "" }, "aria-expanded": "false" }, h("code", null, entry.id));
    let expandedRow = null;
    button.addEventListener("click", async () => {
      button.setAttribute("aria-expanded", String(!expandedRow));
      if (expandedRow) return void (expandedRow.remove(), (expandedRow = null));
      const raw = await runAction(button, () => getText(url`/v1/dlq/${entry.id}`));
      if (!raw || expandedRow) return;
      const source = members(raw);
      const fields = members(source.fields ?? "{}");
      const payload = typeof entry.fields?.payload === "string" ? entry.fields.payload : (fields.payload ?? source.fields);
      const section = (name, source) => h("section", null, h("div", { class: "row between" }, h("h3", null, name), copyButton(source)), jsonTree(source));
      expandedRow = h("tr", { class: "details-row" }, h("td", { colspan: 6 }, section("First error", source.first_error), section("Last error", source.last_error), section("Payload", payload)));
      button.closest("tr").after(expandedRow);
    });
    return button;
  }

  async function redriveOne(event, entry) {
    const response = await runAction(event.currentTarget, () => post(url`/v1/dlq/${entry.id}/redrive`));
    if (!response) return;
    toast(h("span", null, "Redriven as job ", h("a", { href: url`/ui/jobs/${response.job_id}` }, shortId(response.job_id)), "."), "good");
    load();
  }

  async function purgeOne(event, entry) {
    const button = event.currentTarget;
    if (!(await confirmDialog({ title: "Purge this dead letter?", text: "It is deleted permanently.", yes: "Purge" }))) return;
    if ((await runAction(button, () => del(url`/v1/dlq/${entry.id}`), "Purged.")) !== undefined) load();
  }

  async function redriveAll(button, group) {
    const rate = h("input", { type: "number", min: "0.001", max: "1000", step: "any", value: "10", required: true });
    const confirmed = await confirmDialog({
      title: `Redrive ${plural(group.count, "dead letter")}?`,
      text: ["Each becomes a new job with the same payload, and the dead letter is removed.", field("Jobs per second", rate)],
      typed: group.count > 1 ? group.count : null,
      yes: "Redrive",
      danger: false,
    });
    if (!confirmed) return;
    await runAction(button, async () => {
      let redriven = 0;
      let skipped = [];
      // At most as many as there were: jobs that fail again return here, and the loop would not end.
      while (redriven < group.count) {
        const limit = Math.min(BATCH, group.count - redriven);
        const report = await post("/v1/dlq/redrive", { fingerprint: group.fingerprint, limit, rate_per_s: Number(rate.value) || 10 });
        redriven += report.redriven.length;
        skipped = report.skipped;
        if (report.redriven.length < limit) break;
      }
      const codes = [...new Set(skipped.map((item) => item.code))].join(", ");
      toast(`${count(redriven)} redriven` + (skipped.length ? `, ${count(skipped.length)} skipped: ${codes}.` : "."), skipped.length ? "bad" : "good");
    });
    load();
  }

  async function purgeAll(button, group) {
    const confirmed = await confirmDialog({
      title: `Purge ${plural(group.count, "dead letter")}?`,
      text: "All dead letters of this group are deleted permanently.",
      typed: group.count,
      yes: "Purge",
    });
    if (!confirmed) return;
    const response = await runAction(button, () => del("/v1/dlq" + queryString({ fingerprint: group.fingerprint })));
    if (response) toast(`${count(response.purged)} purged.`, "good");
    load();
  }

  /** Every sample has the number of dead letters; the groups are loaded only when it has changed. */
  const unsubscribe = live.on("stats", (point) => {
    const total = point.dead_letters;
    if (typeof total !== "number" || total === knownTotal || timer || groups.contains(document.activeElement)) return;
    timer = setTimeout(() => {
      timer = 0;
      load();
    }, REFRESH_MS);
  });
  await load();
  return {
    title: "Dead letters",
    node: h("div", { class: "dead-letters" }, pageHead("Dead letters", h("button", { type: "button", onClick: (event) => runAction(event.currentTarget, load) }, "Refresh")), status, groups),
    destroy() {
      clearTimeout(timer);
      unsubscribe();
    },
  };
}
