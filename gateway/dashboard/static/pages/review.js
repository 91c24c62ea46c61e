// The review: many proposals, a key for each decision. Rows stay where they are while somebody
// works through them; what was decided leaves a list only when it is chosen anew.

import { post, url } from "../api.js";
import { h, replace } from "../dom.js";
import { badge, confirmDialog, errorBox, jsonTree, segmented, toast } from "../ui.js";
import { press, steady, words } from "./parts.js";
import { CONFLICT, Review, isOpen } from "./review_model.js";

const AT_ONCE = 100;
const TYPED_FROM = 20;
const LISTS = [["proposed", "Undecided"], ["approved", "Approved"], ["rejected", "Rejected"], ["", "All"]];
const EDITED = { from: "From", to: "To", confidence: "Confidence", rationale: "Why", note: "Note" };

export const HELP = [
  ["j", "next"], ["k", "the one before"], ["a", "approve"], ["r", "reject"], ["e", "edit"],
  ["u", "take back"], ["0", "undecided again"], ["x", "select"], ["Enter", "what speaks for it"],
];

/** The review of a step: {node, keys, heard(event), heads(), destroy()}. */
export async function review({ jobId, step, reviewStep, waiting, may }) {
  const model = new Review(jobId, step, changed, said);
  const rows = new Map();
  const picked = new Set();
  const unfolded = new Set();
  let list = null;
  let shown = [];
  let at = 0;

  const search = h("input", { type: "search", placeholder: "Filter by text", "aria-label": "Filter by text", dataset: { search: "" }, onInput: choose });
  const least = h("select", { "aria-label": "Confidence", onChange: choose }, h("option", { value: -1 }, "any confidence"),
    [0.5, 0.7, 0.8, 0.9, 0.95].map((value) => h("option", { value }, `≥ ${value}`)));
  const tabs = h("div");
  const left = h("div", { class: "actions" });
  const right = h("div", { class: "actions" });
  const word = h("span", { class: "dim small space", role: "status" });
  const body = h("ol", { class: "review", "aria-label": "Proposals" });
  const more = h("p", { class: "empty" });
  const seen = new IntersectionObserver(([end]) => end.isIntersecting && grow(), { rootMargin: "600px" });
  await model.load();
  list = model.count("proposed") ? "proposed" : "";
  choose();
  seen.observe(more);

  // -- what is shown -----------------------------------------------------------------------

  function choose() {
    const wanted = search.value.trim().toLowerCase();
    shown = model.items
      .filter((item) => (!list || item.status === list) && (item.payload.confidence ?? 0) >= Number(least.value))
      .filter((item) => !wanted || (item.id + JSON.stringify(item.payload)).toLowerCase().includes(wanted))
      .map((item) => item.id);
    rows.clear();
    replace(body);
    grow();
    mark(0);
    heads();
  }

  /** All is new but where the reader is. */
  function anew() {
    const id = shown[at];
    const here = body.contains(document.activeElement);
    choose();
    mark(shown.indexOf(id), here);
  }

  function grow() {
    const next = shown.slice(rows.size, rows.size + AT_ONCE);
    for (const id of next) {
      const row = h("li", { tabindex: "-1", dataset: { id }, onFocusin: () => mark(shown.indexOf(id)) });
      rows.set(id, row);
      body.append(fill(id));
    }
    const left = shown.length - rows.size;
    replace(more, left ? `${left} more` : !shown.length && "Nothing here.");
  }

  function heads() {
    const named = LISTS.map(([key, name]) => [key, `${name} ${key ? model.count(key) : model.items.length}`]);
    steady(tabs, segmented("Which", named, list, (key) => ((list = key), choose())));
    if (!may) return;
    const ids = many();
    const what = `${ids.length} ${picked.size ? "selected" : "shown"}`;
    const open = model.count("proposed");
    steady(left,
      press(`Approve ${what}`, () => bulk("approve"), { disabled: !ids.length }),
      press(`Reject ${what}`, () => bulk("reject"), { disabled: !ids.length }),
      picked.size > 0 && press("Select none", () => select([...picked], false), { class: "link" }));
    steady(right, press("Undo", () => undo(), { disabled: !model.undos.length }),
      waiting() && press(open ? `Finish, reject ${open} left` : "Finish", finish, { class: "primary" }));
  }

  function fill(id) {
    const item = model.find(id);
    const { payload, status, version } = item;
    const row = rows.get(id);
    const open = may && isOpen(item);
    const notice = model.notices.get(id);
    const deed = (label, act, cls) => press(label, act, { class: ["small", cls], "aria-label": `${label} ${id}` });
    row.dataset.status = status;
    row.classList.toggle("sending", Boolean(item.sending));
    return steady(row,
      may && h("input", { type: "checkbox", checked: picked.has(id), "aria-label": `Select ${id}`, onChange: (event) => select([id], event.target.checked) }),
      h("div", { class: "what" },
        sides(payload),
        h("div", { class: "row dim small" }, h("code", null, id), words(payload.kind), sure(payload.confidence), version > 1 && `version ${version}`),
        payload.rationale && h("p", { class: "small" }, text(payload.rationale)),
        notice && h("p", { class: "box warn small", role: "alert" }, `${notice} It is ${words(status)} now, version ${version}; your decision did not count.`),
        unfolded.has(id) && h("div", { class: "box small" }, jsonTree(payload))),
      h("div", { class: "actions" },
        status !== "proposed" && badge(status, words(status)),
        open && status !== "approved" && deed("Approve", () => decide("approve", id), "good"),
        open && status !== "rejected" && deed("Reject", () => decide("reject", id), "danger"),
        open && deed("Edit", () => edit(id)),
        may && item.undo_token && deed("Undo", () => undo(item.undo_token))));
  }

  function changed(ids, flash = false) {
    if (list === null) return;
    if (!ids) return anew();
    for (const id of ids) {
      const row = rows.get(id);
      if (!row) continue;
      if (!row.querySelector("form")) fill(id);
      row.classList.toggle("changed", flash);
    }
    heads();
  }

  function said(message, bad = false) {
    word.textContent = message;
    if (bad) toast(message, "bad");
  }

  // -- where the reader is -----------------------------------------------------------------

  function mark(place, focus = false) {
    if (place < 0 || place >= shown.length) return;
    while (rows.size <= place) grow();
    rows.get(shown[at])?.removeAttribute("aria-current");
    at = place;
    const row = rows.get(shown[at]);
    row.setAttribute("aria-current", "true");
    if (!focus || document.activeElement?.matches("input:not([type=checkbox]), textarea, select")) return; // who types, types on
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  // -- what the reader does ----------------------------------------------------------------

  function decide(action, id = shown[at]) {
    if (!may || !id) return;
    model.decide(action, [id]);
    const place = shown.indexOf(id);
    const next = shown.findIndex((each, i) => i > place && model.find(each).status === "proposed");
    mark(next < 0 ? place : next, true);
  }

  /** Of the undecided, those that still are: nobody's decision is turned by the way. */
  function many() {
    const ids = picked.size ? [...picked] : shown.filter((id) => !list || model.find(id).status === list);
    return ids.filter((id) => isOpen(model.find(id)));
  }

  async function bulk(action) {
    const ids = many();
    const yes = action === "approve" ? "Approve" : "Reject";
    const known = "Only as they are on this page: what somebody has changed meanwhile is left alone. It can be undone.";
    if (!(await ask(`${yes} ${ids.length} proposals?`, known, ids.length, yes))) return;
    picked.clear();
    await model.decide(action, ids);
    changed(ids);
  }

  async function finish() {
    const open = model.count("proposed");
    const rest = open ? `${open} undecided proposals are rejected, and the workflow` : "The workflow";
    if (!(await ask("Finish the review?", `${rest} goes on.`, open, "Finish"))) return;
    try {
      await post(model.path + url`/steps/${reviewStep}/execute`, { payload: { finalize: true }, wait_s: 0 });
      await model.load();
    } catch (error) {
      said(error.detail, true);
    }
  }

  function select(ids, on) {
    for (const id of ids) picked[on ? "add" : "delete"](id);
    changed(ids);
  }

  async function undo(token) {
    const [first] = (await model.undo(token)) ?? [];
    heads();
    mark(shown.indexOf(first), true);
  }

  function edit(id = shown[at]) {
    const row = rows.get(id);
    if (!may || !isOpen(model.find(id)) || row.querySelector("form")) return;
    row.append(editor(model, id, () => (fill(id), mark(shown.indexOf(id), true))));
    row.querySelector("form input, form textarea").focus();
  }

  function unfold(event) {
    const pressed = event.target.closest("button, a, summary");
    if (pressed) return pressed.click();
    const id = shown[at];
    unfolded[unfolded.has(id) ? "delete" : "add"](id);
    changed([id]);
  }

  return {
    node: h("section", { class: "card stack" }, h("div", { class: "row" }, tabs, search, least),
      h("div", { class: "bulk" }, left, word, right), body, more),
    keys: {
      j: () => mark(at + 1, true),
      k: () => mark(at - 1, true),
      a: () => decide("approve"), r: () => decide("reject"), 0: () => decide("reset"),
      e: () => edit(), u: () => may && undo(), Enter: unfold,
      x: () => may && shown.length && select([shown[at]], !picked.has(shown[at])),
    },
    heads,
    heard: (event) => model.heard(event),
    destroy: () => seen.disconnect(),
  };
}

const ask = (title, words, count, yes) => confirmDialog({ title, text: words, yes, typed: count >= TYPED_FROM ? String(count) : null, danger: yes !== "Approve" });

/** A form in the row itself. What was typed stays when somebody else was faster. */
function editor(model, id, close) {
  let { payload, version } = model.find(id); // what is on the screen
  const approve = h("input", { type: "checkbox", checked: true });
  const trouble = h("div", { role: "alert" });
  const written = (name) => (Array.isArray(payload[name]) ? payload[name].join("\n") : text(payload[name]));
  const inputs = Object.keys(EDITED).map((name) => {
    const value = written(name);
    return h(/\n|.{70}/.test(value) ? "textarea" : "input", { name, value });
  });

  function change() {
    const wanted = { auto_approve: approve.checked, version };
    for (const { name, value } of inputs) {
      if (value === written(name)) continue;
      if (Array.isArray(payload[name])) wanted[name] = value.split("\n").filter((line) => line.trim());
      else wanted[name] = name === "confidence" ? Number(value) : value;
    }
    return wanted;
  }

  async function onSubmit(event) {
    event.preventDefault();
    try {
      await model.edit(id, change());
      close();
    } catch (error) {
      const now = model.find(id);
      if (error.code === CONFLICT) version = now.version;
      replace(trouble, error.code !== CONFLICT ? errorBox(error) : h("div", { class: "box warn" },
        h("p", null, `Somebody was faster. It is ${words(now.status)} now, version ${now.version}:`), sides(now.payload),
        h("p", null, "Save once more to change it all the same, or leave it so.")));
    }
  }

  function onKeydown(event) {
    if (event.key === "Enter" && event.ctrlKey) event.currentTarget.requestSubmit(); // from a textarea, too
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  }

  return h("form", { class: "edit", onSubmit, onKeydown },
    inputs.map((input) => h("label", null, EDITED[input.name], Array.isArray(payload[input.name]) && ", one a line", input)),
    h("label", { class: "check" }, approve, "approve as well"), trouble,
    h("div", { class: "actions" }, h("button", { class: "primary small" }, "Save"), press("Leave it", close, { class: "small" })));
}

function sides({ from, to, ...rest }) {
  if (!from && !to) return h("div", { class: "pair" }, text(rest.title ?? rest.text ?? rest.name ?? rest).slice(0, 300));
  return h("div", { class: "pair" }, from && [text(from), h("span", { class: "arrow", role: "img", "aria-label": "becomes" }, "→")], h("strong", null, text(to) || "–"));
}

const sure = (value) => typeof value === "number" && h("span", null, h("meter", { value, "aria-label": "Confidence" }), ` ${value.toFixed(2)}`);

function text(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(text).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
