// Dead letters in groups of similar failures: inspect, redrive, purge.

import { del, get, getText, post, queryString, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { count, printable, shortId } from "../lib/format.js";
import { live } from "../lib/live.js";
import { badge, confirmDialog, copyButton, errorBox, field, jsonTree, members, pageHead, runAction, table, timeAgo, toast } from "../components/ui.js";

const REASONS = {
  attempts_exhausted: "tried as often as allowed",
  expired_before_start: "expired before it began",
  job_missing_or_expired: "its job was gone",
  job_keys_corrupt: "its job is unreadable",
  message_without_job_id: "names no job",
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
        ? `${count(response.total)} ${response.total === 1 ? "dead letter" : "dead letters"} in ${count(response.groups.length)} ${response.groups.length === 1 ? "group" : "groups"}` + (response.complete ? "" : `; the newest ${count(response.looked_at)} were looked at`)
        : "";
      replace(groups, response.groups.length ? response.groups.map(groupCard) : h("p", { class: "empty card" }, "No dead letters. Whatever was accepted came to an end."));
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
          h("button", { type: "button", onClick: (event) => redriveAll(event.currentTarget, group) }, `Redrive ${group.count === 1 ? "it" : `all ${count(group.count)}`}…`),
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
    if (!before) replace(node, h("p", { class: "dim" }, "Reading…"));
    try {
      const page = await get("/v1/dlq", { fingerprint: group.fingerprint, limit: 50, before });
      if (!before) node.replaceChildren();
      node.append(
        table({
          caption: before ? null : "The newest first",
          columns: [
            { name: "Letter", cell: (entry) => expandButton(entry) },
            { name: "Job", cell: (entry) => (entry.job_id ? h("a", { href: url`/ui/jobs/${entry.job_id}` }, h("code", { title: entry.job_id }, shortId(printable(entry.job_id)))) : "–") },
            { name: "Put aside", wide: true, cell: (entry) => timeAgo(entry.ts) },
            { name: "Attempts", align: "right", wide: true, cell: (entry) => entry.attempts },
            { name: "Last error", wide: true, cell: (entry) => h("span", { class: "reason" }, printable(entry.last_error?.message ?? "").slice(0, 300)) },
            { name: h("span", { class: "visually-hidden" }, "Actions"), cell: (entry) => canRedrive && h("span", { class: "row end" }, h("button", { type: "button", class: "small", onClick: (event) => redriveOne(event, entry) }, "Redrive"), h("button", { type: "button", class: "small danger", onClick: (event) => purgeOne(event, entry) }, "Purge")) },
          ],
          rows: page.items,
          empty: before ? "No more." : "They are gone.",
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
    toast(h("span", null, "It became job ", h("a", { href: url`/ui/jobs/${response.job_id}` }, shortId(response.job_id)), "."), "good");
    load();
  }

  async function purgeOne(event, entry) {
    const button = event.currentTarget;
    if (!(await confirmDialog({ title: "Purge this dead letter?", text: "It is forgotten for good.", yes: "Purge" }))) return;
    if ((await runAction(button, () => del(url`/v1/dlq/${entry.id}`), "Purged.")) !== undefined) load();
  }

  async function redriveAll(button, group) {
    const rate = h("input", { type: "number", min: "0.001", max: "1000", step: "any", value: "10", required: true });
    const confirmed = await confirmDialog({
      title: `Redrive ${count(group.count)} dead ${group.count === 1 ? "letter" : "letters"}?`,
      text: ["Each becomes a new job with the same payload, and its letter goes.", field("Jobs a second", rate)],
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
      toast(`${count(redriven)} redriven` + (skipped.length ? `, ${count(skipped.length)} stay: ${codes}.` : "."), skipped.length ? "bad" : "good");
    });
    load();
  }

  async function purgeAll(button, group) {
    const confirmed = await confirmDialog({
      title: `Purge ${count(group.count)} dead ${group.count === 1 ? "letter" : "letters"}?`,
      text: "All of this group are forgotten for good.",
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
    node: h("div", { class: "dead-letters" }, pageHead("Dead letters", h("button", { type: "button", onClick: (event) => runAction(event.currentTarget, load) }, "Read again")), status, groups),
    destroy() {
      clearTimeout(timer);
      unsubscribe();
    },
  };
}
