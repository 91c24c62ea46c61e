// The review of proposals, with a key for each decision. Rows keep their position while the user
// works through them; decided ones leave a list only when it is opened again.

import { post, url } from "../../lib/api.js";
import { h, replace, replaceKeepingFocus } from "../../lib/dom.js";
import { humanize, plural } from "../../lib/format.js";
import { actionButton, badge, confirmDialog, errorBox, jsonTree, segmented, toast } from "../../components/ui.js";
import { CONFLICT, Review, isOpen } from "./review_model.js";

const BATCH = 100;
const TYPED_CONFIRMATION_FROM = 20;
const FILTERS = [["proposed", "Undecided"], ["approved", "Approved"], ["rejected", "Rejected"], ["", "All"]];
const EDIT_FIELDS = { from: "From", to: "To", confidence: "Confidence", rationale: "Rationale", note: "Note" };

export const HELP = [
  ["j", "next"], ["k", "previous"], ["a", "approve"], ["r", "reject"], ["e", "edit"],
  ["u", "undo"], ["0", "reset to undecided"], ["x", "select"], ["Enter", "show evidence"],
];

/** The review of a step: {node, keys, onEvent(event), updateHeader(), destroy()}. */
export async function review({ jobId, step, reviewStep, waiting, canDecide }) {
  const model = new Review(jobId, step, onChange, showMessage);
  const rows = new Map();
  const selected = new Set();
  const expanded = new Set();
  let filter = null;
  let shownIds = [];
  let current = 0;

  const search = h("input", { type: "search", placeholder: "Filter by text", "aria-label": "Filter by text", dataset: { search: "" }, onInput: applyFilters });
  const minConfidence = h("select", { "aria-label": "Confidence", onChange: applyFilters }, h("option", { value: -1 }, "any confidence"),
    [0.5, 0.7, 0.8, 0.9, 0.95].map((value) => h("option", { value }, `≥ ${value}`)));
  const filterTabs = h("div");
  const bulkActions = h("div", { class: "actions" });
  const finishActions = h("div", { class: "actions" });
  const messageNode = h("span", { class: "dim small space", role: "status" });
  const body = h("ol", { class: "review", "aria-label": "Proposals" });
  const footer = h("p", { class: "empty" });
  const endObserver = new IntersectionObserver(([end]) => end.isIntersecting && renderMore(), { rootMargin: "600px" });
  await model.load();
  filter = model.count("proposed") ? "proposed" : "";
  applyFilters();
  endObserver.observe(footer);

  // -- rendering ---------------------------------------------------------------------------

  function matchesFilters(item) {
    const query = search.value.trim().toLowerCase();
    return (!filter || item.status === filter) && (item.payload.confidence ?? 0) >= Number(minConfidence.value)
      && (!query || (item.id + JSON.stringify(item.payload)).toLowerCase().includes(query));
  }

  function applyFilters() {
    shownIds = model.items.filter(matchesFilters).map((item) => item.id);
    rows.clear();
    replace(body);
    renderMore();
    setCurrent(0);
    updateHeader();
  }

  /** Render everything again; the current row stays. */
  function renderAgain() {
    const id = shownIds[current];
    const hadFocus = body.contains(document.activeElement);
    applyFilters();
    setCurrent(shownIds.indexOf(id), hadFocus);
  }

  function renderMore() {
    const next = shownIds.slice(rows.size, rows.size + BATCH);
    for (const id of next) {
      const row = h("li", { tabindex: "-1", dataset: { id }, onFocusin: () => setCurrent(shownIds.indexOf(id)) });
      rows.set(id, row);
      body.append(renderRow(id));
    }
    const remaining = shownIds.length - rows.size;
    replace(footer, remaining ? `${remaining} more` : !shownIds.length && "No proposals.");
  }

  function updateHeader() {
    const labels = FILTERS.map(([key, name]) => [key, `${name} ${key ? model.count(key) : model.items.length}`]);
    replaceKeepingFocus(filterTabs, segmented("Status", labels, filter, (key) => ((filter = key), applyFilters())));
    if (!canDecide) return;
    const ids = bulkIds();
    const targets = `${ids.length} ${selected.size ? "selected" : "shown"}`;
    const open = model.count("proposed");
    replaceKeepingFocus(bulkActions,
      actionButton(`Approve ${targets}`, () => bulk("approve"), { disabled: !ids.length }),
      actionButton(`Reject ${targets}`, () => bulk("reject"), { disabled: !ids.length }),
      selected.size > 0 && actionButton("Select none", () => select([...selected], false), { class: "link" }));
    replaceKeepingFocus(finishActions, actionButton("Undo", () => undo(), { disabled: !model.undoTokens.length }),
      waiting() && actionButton(open ? `Finish, reject ${open} left` : "Finish", finish, { class: "primary" }));
  }

  function renderRow(id) {
    const item = model.find(id);
    const { payload, status, version } = item;
    const row = rows.get(id);
    const open = canDecide && isOpen(item);
    const notice = model.notices.get(id);
    const rowButton = (label, action, className) => actionButton(label, action, { class: ["small", className], "aria-label": `${label} ${id}` });
    row.dataset.status = status;
    row.classList.toggle("sending", Boolean(item.sending));
    return replaceKeepingFocus(row,
      canDecide && h("input", { type: "checkbox", checked: selected.has(id), "aria-label": `Select ${id}`, onChange: (event) => select([id], event.target.checked) }),
      h("div", { class: "proposal" },
        changeNode(payload),
        h("div", { class: "row dim small" }, h("code", null, id), humanize(payload.kind), confidenceNode(payload.confidence), version > 1 && `version ${version}`),
        payload.rationale && h("p", { class: "small" }, toText(payload.rationale)),
        notice && h("p", { class: "box warn small", role: "alert" }, `${notice} It is ${humanize(status)} now, version ${version}; your decision was not applied.`),
        expanded.has(id) && h("div", { class: "box small" }, jsonTree(payload))),
      h("div", { class: "actions" },
        status !== "proposed" && badge(status, humanize(status)),
        open && status !== "approved" && rowButton("Approve", () => decide("approve", id), "good"),
        open && status !== "rejected" && rowButton("Reject", () => decide("reject", id), "danger"),
        open && rowButton("Edit", () => edit(id)),
        canDecide && item.undo_token && rowButton("Undo", () => undo(item.undo_token))));
  }

  function onChange(ids, flash = false) {
    if (filter === null) return;
    if (!ids) return renderAgain();
    for (const id of ids) {
      const row = rows.get(id);
      if (!row) continue;
      if (!row.querySelector("form")) renderRow(id);
      row.classList.toggle("changed", flash);
    }
    updateHeader();
  }

  function showMessage(message, bad = false) {
    messageNode.textContent = message;
    if (bad) toast(message, "bad");
  }

  // -- current row -------------------------------------------------------------------------

  function setCurrent(index, focus = false) {
    if (index < 0 || index >= shownIds.length) return;
    while (rows.size <= index) renderMore();
    rows.get(shownIds[current])?.removeAttribute("aria-current");
    current = index;
    const row = rows.get(shownIds[current]);
    row.setAttribute("aria-current", "true");
    if (!focus || document.activeElement?.matches("input:not([type=checkbox]), textarea, select")) return; // do not interrupt typing
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  // -- actions -----------------------------------------------------------------------------

  function decide(action, id = shownIds[current]) {
    if (!canDecide || !id) return;
    model.decide(action, [id]);
    const index = shownIds.indexOf(id);
    const next = shownIds.findIndex((other, i) => i > index && model.find(other).status === "proposed");
    setCurrent(next < 0 ? index : next, true);
  }

  /** Items of a bulk action: only those still in the shown list, so that no decision is overturned. */
  function bulkIds() {
    const ids = selected.size ? [...selected] : shownIds.filter((id) => !filter || model.find(id).status === filter);
    return ids.filter((id) => isOpen(model.find(id)));
  }

  async function bulk(action) {
    const ids = bulkIds();
    const yes = action === "approve" ? "Approve" : "Reject";
    const note = "Proposals that were changed elsewhere meanwhile are skipped. This can be undone.";
    if (!(await askConfirmation(`${yes} ${plural(ids.length, "proposal")}?`, note, ids.length, yes))) return;
    selected.clear();
    await model.decide(action, ids);
    onChange(ids);
  }

  async function finish() {
    const open = model.count("proposed");
    const rejected = open ? `${plural(open, "undecided proposal is", "undecided proposals are")} rejected. ` : "";
    if (!(await askConfirmation("Finish the review?", `${rejected}The workflow continues.`, open, "Finish"))) return;
    try {
      await post(model.path + url`/steps/${reviewStep}/execute`, { payload: { finalize: true }, wait_s: 0 });
      await model.load();
    } catch (error) {
      showMessage(error.detail, true);
    }
  }

  function select(ids, on) {
    for (const id of ids) selected[on ? "add" : "delete"](id);
    onChange(ids);
  }

  async function undo(token) {
    const ids = (await model.undo(token)) ?? [];
    const shown = new Set(shownIds);
    // The list may have been opened while the decisions still applied.
    if (ids.some((id) => !shown.has(id) && matchesFilters(model.find(id)))) renderAgain();
    updateHeader();
    setCurrent(shownIds.indexOf(ids[0]), true);
  }

  function edit(id = shownIds[current]) {
    const row = rows.get(id);
    if (!canDecide || !isOpen(model.find(id)) || row.querySelector("form")) return;
    row.append(editForm(model, id, () => (renderRow(id), setCurrent(shownIds.indexOf(id), true))));
    row.querySelector("form input, form textarea").focus();
  }

  function toggleDetails(event) {
    const target = event.target.closest("button, a, summary");
    if (target) return target.click();
    const id = shownIds[current];
    expanded[expanded.has(id) ? "delete" : "add"](id);
    onChange([id]);
  }

  return {
    node: h("section", { class: "card stack" }, h("div", { class: "row" }, filterTabs, search, minConfidence),
      h("div", { class: "bulk-bar" }, bulkActions, messageNode, finishActions), body, footer),
    keys: {
      j: () => setCurrent(current + 1, true),
      k: () => setCurrent(current - 1, true),
      a: () => decide("approve"), r: () => decide("reject"), 0: () => decide("reset"),
      e: () => edit(), u: () => canDecide && undo(), Enter: toggleDetails,
      x: () => canDecide && shownIds.length && select([shownIds[current]], !selected.has(shownIds[current])),
    },
    updateHeader,
    onEvent: (event) => model.onEvent(event),
    destroy: () => endObserver.disconnect(),
  };
}

const askConfirmation = (title, text, count, yes) => confirmDialog({ title, text, yes, typed: count >= TYPED_CONFIRMATION_FROM ? String(count) : null, danger: yes !== "Approve" });

/** A form in the row. On a version conflict, what the user has typed stays. */
function editForm(model, id, close) {
  let { payload, version } = model.find(id); // what the form shows
  const approve = h("input", { type: "checkbox", checked: true });
  const errors = h("div", { role: "alert" });
  const fieldText = (name) => (Array.isArray(payload[name]) ? payload[name].join("\n") : toText(payload[name]));
  const inputs = Object.keys(EDIT_FIELDS).map((name) => {
    const value = fieldText(name);
    return h(/\n|.{70}/.test(value) ? "textarea" : "input", { name, value });
  });

  function editedFields() {
    const fields = { auto_approve: approve.checked, version };
    for (const { name, value } of inputs) {
      if (value === fieldText(name)) continue;
      if (Array.isArray(payload[name])) fields[name] = value.split("\n").filter((line) => line.trim());
      else fields[name] = name === "confidence" ? Number(value) : value;
    }
    return fields;
  }

  async function onSubmit(event) {
    event.preventDefault();
    try {
      await model.edit(id, editedFields());
      close();
    } catch (error) {
      const latest = model.find(id);
      if (error.code === CONFLICT) version = latest.version;
      replace(errors, error.code !== CONFLICT ? errorBox(error) : h("div", { class: "box warn" },
        h("p", null, `Changed by another user. It is ${humanize(latest.status)} now, version ${latest.version}:`), changeNode(latest.payload),
        h("p", null, "Save again to overwrite it, or cancel.")));
    }
  }

  function onKeydown(event) {
    if (event.key === "Enter" && event.ctrlKey) event.currentTarget.requestSubmit(); // in a textarea as well
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  }

  return h("form", { class: "edit", onSubmit, onKeydown },
    inputs.map((input) => h("label", null, EDIT_FIELDS[input.name], Array.isArray(payload[input.name]) && ", one per line", input)),
    h("label", { class: "check" }, approve, "approve as well"), errors,
    h("div", { class: "actions" }, h("button", { class: "primary small" }, "Save"), actionButton("Cancel", close, { class: "small" })));
}

function changeNode({ from, to, ...rest }) {
  if (!from && !to) return h("div", { class: "change" }, toText(rest.title ?? rest.text ?? rest.name ?? rest).slice(0, 300));
  return h("div", { class: "change" }, from && [toText(from), h("span", { class: "arrow", role: "img", "aria-label": "becomes" }, "→")], h("strong", null, toText(to) || "–"));
}

const confidenceNode = (value) => typeof value === "number" && h("span", null, h("meter", { value, "aria-label": "Confidence" }), ` ${value.toFixed(2)}`);

function toText(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(toText).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
