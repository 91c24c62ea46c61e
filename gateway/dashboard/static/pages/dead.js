// Dead letters: what failed alike is one line, to be looked into, redriven or purged.

import { del, get, post, queryOf, text, url } from "../api.js";
import { h, replace } from "../dom.js";
import { count, short, visible } from "../format.js";
import { live } from "../live.js";
import { act, badge, confirmDialog, copyButton, errorBox, field, jsonTree, members, pageHead, table, toast, when } from "../ui.js";

const REASONS = {
  attempts_exhausted: "tried as often as allowed",
  expired_before_start: "expired before it began",
  job_missing_or_expired: "its job was gone",
  job_keys_corrupt: "its job is unreadable",
  message_without_job_id: "names no job",
};
const AT_ONCE = 1000;
const REFRESH_MS = 2000;

export default async function page({ query, setQuery, me }) {
  const may = me.may("redrive");
  const told = h("p", { class: "told", role: "status" });
  const groups = h("div", { class: "stack" });
  let open = query.get("fingerprint") ?? "";
  let known = null;
  let due = 0;

  async function load() {
    try {
      const answer = await get("/v1/dlq/groups");
      known = answer.total;
      told.textContent = answer.total
        ? `${count(answer.total)} ${answer.total === 1 ? "dead letter" : "dead letters"} in ${count(answer.groups.length)} ${answer.groups.length === 1 ? "group" : "groups"}` + (answer.complete ? "" : `; the newest ${count(answer.looked_at)} were looked at`)
        : "";
      replace(groups, answer.groups.length ? answer.groups.map(card) : h("p", { class: "empty card" }, "No dead letters. Whatever was accepted came to an end."));
    } catch (error) {
      replace(groups, errorBox(error));
    }
  }

  function card(group) {
    const letters = h("div");
    const fold = h(
      "details",
      { class: "card group", open: open === group.fingerprint },
      h(
        "summary",
        null,
        h("b", { class: "many" }, count(group.count)),
        h("span", { class: "what" }, h("b", null, visible(group.kind ?? REASONS[group.reason] ?? group.reason)), " ", visible(group.message ?? "")),
        h("span", { class: "row" }, group.task && badge("task", visible(group.task)), h("small", null, REASONS[group.reason] ?? visible(group.reason), " · last ", when(group.newest_ts))),
      ),
      may &&
        h(
          "div",
          { class: "row tools" },
          h("button", { type: "button", onClick: (event) => redriveAll(event.currentTarget, group) }, `Redrive ${group.count === 1 ? "it" : `all ${count(group.count)}`}…`),
          h("button", { type: "button", class: "danger", onClick: (event) => purgeAll(event.currentTarget, group) }, "Purge…"),
        ),
      letters,
    );
    const fill = () => {
      if (fold.open) more(letters, group, null);
      else if (open === group.fingerprint) open = "";
      if (fold.open) open = group.fingerprint;
      setQuery({ fingerprint: open });
    };
    fold.addEventListener("toggle", fill);
    return fold;
  }

  async function more(node, group, before) {
    node.querySelector(".next")?.remove();
    if (!before) replace(node, h("p", { class: "dim" }, "Reading…"));
    try {
      const page = await get("/v1/dlq", { fingerprint: group.fingerprint, limit: 50, before });
      if (!before) node.replaceChildren();
      node.append(
        table({
          caption: before ? null : "The newest first",
          columns: [
            { name: "Letter", cell: (letter) => lookButton(letter) },
            { name: "Job", cell: (letter) => (letter.job_id ? h("a", { href: url`/ui/jobs/${letter.job_id}` }, h("code", { title: letter.job_id }, short(visible(letter.job_id)))) : "–") },
            { name: "Put aside", wide: true, cell: (letter) => when(letter.ts) },
            { name: "Attempts", align: "right", wide: true, cell: (letter) => letter.attempts },
            { name: "Last error", wide: true, cell: (letter) => h("span", { class: "why" }, visible(letter.last_error?.message ?? "").slice(0, 300)) },
            { name: h("span", { class: "unseen" }, "Actions"), cell: (letter) => may && h("span", { class: "row end" }, h("button", { type: "button", class: "small", onClick: (event) => redriveOne(event, letter) }, "Redrive"), h("button", { type: "button", class: "small danger", onClick: (event) => purgeOne(event, letter) }, "Purge")) },
          ],
          rows: page.items,
          empty: before ? "No more." : "They are gone.",
        }),
      );
      if (page.next) node.append(h("button", { type: "button", class: "next", onClick: () => more(node, group, page.next) }, "Load more"));
    } catch (error) {
      replace(node, errorBox(error));
    }
  }

  /** The letter whole, its payload as it was sent. */
  function lookButton(letter) {
    const button = h("button", { type: "button", class: "link", dataset: { nav: "" }, "aria-expanded": "false" }, h("code", null, letter.id));
    let shown = null;
    button.addEventListener("click", async () => {
      button.setAttribute("aria-expanded", String(!shown));
      if (shown) return void (shown.remove(), (shown = null));
      const raw = await act(button, () => text(url`/v1/dlq/${letter.id}`));
      if (!raw || shown) return;
      const source = members(raw);
      const fields = members(source.fields ?? "{}");
      const payload = typeof letter.fields?.payload === "string" ? letter.fields.payload : (fields.payload ?? source.fields);
      const part = (name, words) => h("section", null, h("div", { class: "row between" }, h("h3", null, name), copyButton(words)), jsonTree(words));
      shown = h("tr", { class: "whole" }, h("td", { colspan: 6 }, part("First error", source.first_error), part("Last error", source.last_error), part("Payload", payload)));
      button.closest("tr").after(shown);
    });
    return button;
  }

  async function redriveOne(event, letter) {
    const answer = await act(event.currentTarget, () => post(url`/v1/dlq/${letter.id}/redrive`));
    if (!answer) return;
    toast(h("span", null, "It became job ", h("a", { href: url`/ui/jobs/${answer.job_id}` }, short(answer.job_id)), "."), "good");
    load();
  }

  async function purgeOne(event, letter) {
    const button = event.currentTarget;
    if (!(await confirmDialog({ title: "Purge this dead letter?", text: "It is forgotten for good.", yes: "Purge" }))) return;
    if ((await act(button, () => del(url`/v1/dlq/${letter.id}`), "Purged.")) !== undefined) load();
  }

  async function redriveAll(button, group) {
    const rate = h("input", { type: "number", min: "0.001", max: "1000", step: "any", value: "10", required: true });
    const sure = await confirmDialog({
      title: `Redrive ${count(group.count)} dead ${group.count === 1 ? "letter" : "letters"}?`,
      text: ["Each becomes a new job with the same payload, and its letter goes.", field("Jobs a second", rate)],
      typed: group.count > 1 ? group.count : null,
      yes: "Redrive",
      danger: false,
    });
    if (!sure) return;
    await act(button, async () => {
      let redriven = 0;
      let skipped = [];
      // No more than there were: those that fail again come back, and would be redriven without end.
      while (redriven < group.count) {
        const limit = Math.min(AT_ONCE, group.count - redriven);
        const report = await post("/v1/dlq/redrive", { fingerprint: group.fingerprint, limit, rate_per_s: Number(rate.value) || 10 });
        redriven += report.redriven.length;
        skipped = report.skipped;
        if (report.redriven.length < limit) break;
      }
      const codes = [...new Set(skipped.map((one) => one.code))].join(", ");
      toast(`${count(redriven)} redriven` + (skipped.length ? `, ${count(skipped.length)} stay: ${codes}.` : "."), skipped.length ? "bad" : "good");
    });
    load();
  }

  async function purgeAll(button, group) {
    const sure = await confirmDialog({
      title: `Purge ${count(group.count)} dead ${group.count === 1 ? "letter" : "letters"}?`,
      text: "All of this group are forgotten for good.",
      typed: group.count,
      yes: "Purge",
    });
    if (!sure) return;
    const answer = await act(button, () => del("/v1/dlq" + queryOf({ fingerprint: group.fingerprint })));
    if (answer) toast(`${count(answer.purged)} purged.`, "good");
    load();
  }

  /** Their number comes with every sample; the groups are read again only when it has changed. */
  const off = live.on("stats", (point) => {
    const total = point.dead_letters;
    if (typeof total !== "number" || total === known || due || groups.contains(document.activeElement)) return;
    due = setTimeout(() => {
      due = 0;
      load();
    }, REFRESH_MS);
  });
  await load();
  return {
    title: "Dead letters",
    node: h("div", { class: "dead" }, pageHead("Dead letters", h("button", { type: "button", onClick: (event) => act(event.currentTarget, load) }, "Read again")), told, groups),
    destroy() {
      clearTimeout(due);
      off();
    },
  };
}
