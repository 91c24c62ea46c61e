// What all pages are made of.

import { h, replace } from "./dom.js";
import { ago, clock } from "./format.js";

export { jsonTree, members, pretty } from "./json_view.js";

/** A state in a word and a colour. */
export function badge(status, label = status) {
  return h("span", { class: "badge", dataset: { status } }, label);
}

/** The head of a page; actions stand beside it. */
export function pageHead(title, ...actions) {
  return h(
    "header",
    { class: "page-head" },
    h("h1", { tabindex: "-1" }, title),
    h("div", { class: "actions" }, actions),
  );
}

/**
 * A table. Columns: {name, cell(row), align: 'right', wide: true (not on phones), label}. A row
 * that has a page begins with a rowLink, which j and k go to.
 */
export function table({ caption, columns, rows, empty = "Nothing here.", rowClass }) {
  const cls = (column) => [column.align === "right" && "num", column.wide && "wide"];
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      null,
      caption && h("caption", null, caption),
      h("thead", null, h("tr", null, columns.map((c) => h("th", { scope: "col", class: cls(c) }, c.name)))),
      h(
        "tbody",
        null,
        rows.map((row) =>
          h("tr", { class: rowClass?.(row) }, columns.map((c) => h("td", { class: cls(c) }, c.cell(row)))),
        ),
      ),
    ),
  );
}

/** A link that stands for its row. */
export function rowLink(href, ...children) {
  return h("a", { href, dataset: { nav: "" } }, children);
}

/** A moment as "3 s ago", kept up to date; the exact one in its title. */
export function when(ms) {
  if (typeof ms !== "number" || Number.isNaN(new Date(ms).getTime())) return "–";
  return h(
    "time",
    { datetime: new Date(ms).toISOString(), title: clock(ms, { date: true }), dataset: { ago: ms } },
    ago(ms),
  );
}

setInterval(() => {
  if (document.hidden) return;
  for (const node of document.querySelectorAll("time[data-ago]")) {
    const words = ago(Number(node.dataset.ago));
    if (node.textContent !== words) node.textContent = words;
  }
}, 1000);

/** A number with its name; `set` changes it. */
export function tile(name, { href, hint } = {}) {
  const value = h("strong", null, "–");
  const more = h("small", null, "\u00a0");
  const node = h(href ? "a" : "div", { class: "tile", href, title: hint }, h("span", { class: "name" }, name), value, more);
  return {
    node,
    set(words, detail = "", tone = "") {
      if (value.textContent !== words) replace(value, words);
      const below = detail || "\u00a0";
      if (more.textContent !== below) more.textContent = below;
      node.dataset.tone = tone;
    },
  };
}

/** A labelled input; `hint` says more below it. */
export function field(label, input, hint) {
  input.id ||= `f${(ids += 1)}`;
  const more = hint && h("small", { id: `${input.id}-hint`, class: "hint" }, hint);
  if (more) input.setAttribute("aria-describedby", more.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, more);
}

let ids = 0;

/** A choice among a few, as buttons: segmented("Range", [["1h", "1 h"]], "1h", chosen). */
export function segmented(label, options, value, onPick) {
  const node = h("div", { class: "segmented", role: "group", "aria-label": label });
  const show = (now) =>
    replace(
      node,
      options.map(([key, words]) =>
        h(
          "button",
          { type: "button", "aria-pressed": String(key === now), onClick: () => (show(key), onPick(key)) },
          words,
        ),
      ),
    );
  show(value);
  return node;
}

/** What went wrong, in the gateway's own words. */
export function errorBox(error) {
  const faults = (error.problem?.errors ?? []).filter((fault) => fault.pointer || fault.field);
  return h(
    "div",
    { class: "box error", role: "alert" },
    h("p", null, error.detail ?? error.message ?? String(error)),
    faults.length > 0 &&
      h("ul", null, faults.map((f) => h("li", null, h("code", null, f.pointer ?? f.field), " ", f.detail ?? f.message))),
    error.problem?.request_id && h("small", null, `Request ${error.problem.request_id}`),
  );
}

/** A node marked busy until the promise has ended; the button that was pressed waits, too. */
export async function busy(node, promise) {
  node.setAttribute("aria-busy", "true");
  if ("disabled" in node) node.disabled = true;
  try {
    return await (typeof promise === "function" ? promise() : promise);
  } finally {
    node.removeAttribute("aria-busy");
    if ("disabled" in node) node.disabled = false;
  }
}

/** Do what a button is for; an error becomes a toast. */
export async function act(button, deed, said) {
  try {
    const result = await busy(button, deed);
    if (said) toast(said, "good");
    return result;
  } catch (error) {
    toast(error.detail ?? error.message, "bad");
    return undefined;
  }
}

/** Ask before a deed. `typed`: what must be typed to confirm, such as a count. */
export function confirmDialog({ title, text, typed = null, yes = "Yes", danger = true }) {
  return new Promise((resolve) => {
    const input = typed === null ? null : h("input", { autocomplete: "off", spellcheck: "false" });
    const go = h("button", { class: danger ? "danger" : "primary", value: "yes", disabled: typed !== null }, yes);
    input?.addEventListener("input", () => (go.disabled = input.value.trim() !== String(typed)));
    const dialog = h(
      "dialog",
      { "aria-labelledby": "ask-title", onClose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "ask-title" }, title),
        [text].flat().map((part) => h("p", null, part)),
        input && field(`Type ${typed} to confirm`, input),
        h("div", { class: "actions" }, h("button", { value: "no", formnovalidate: true }, "Cancel"), go),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A dialog with anything in it, closed by Escape and its button. */
export function showDialog(title, ...children) {
  const dialog = h(
    "dialog",
    { "aria-labelledby": "dialog-title", onClose: () => dialog.remove() },
    h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), children,
      h("div", { class: "actions" }, h("button", { class: "primary", autofocus: true }, "Close"))),
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A word in the corner, gone after a while. */
export function toast(text, kind = "info") {
  let corner = document.querySelector(".toasts");
  if (!corner) {
    corner = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(corner);
  }
  const node = h("div", { class: ["toast", kind] }, text);
  corner.append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 4000);
}

/** Copies a text, or what a function returns. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "small" }, label);
  button.addEventListener("click", async () => {
    const value = typeof text === "function" ? text() : text;
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      byHand(value); // no clipboard without TLS
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function byHand(value) {
  const area = h("textarea", { value, class: "offscreen", "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
