// Building blocks of all pages: tables, forms, buttons, dialogs, icons.

import { h, replace, svg } from "../lib/dom.js";
import { ago, clock } from "../lib/format.js";

export { jsonTree, members, pretty } from "./json_view.js";

/** A status as a label with its colour. */
export function badge(status, label = status) {
  return h("span", { class: "badge", dataset: { status } }, label);
}

/** The heading of a page, with its actions. */
export function pageHead(title, ...actions) {
  return h(
    "header",
    { class: "page-head" },
    h("h1", { tabindex: "-1" }, title),
    h("div", { class: "actions" }, actions),
  );
}

/**
 * A table. Columns: {name, cell(row), align: 'right', wide: true (hidden on phones)}. If rows have
 * pages, the first cell is a rowLink; the keys j and k move between row links.
 */
export function table({ caption, columns, rows, empty = "No entries.", rowClass }) {
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

/** The link to the page of a table row. */
export function rowLink(href, ...children) {
  return h("a", { href, dataset: { nav: "" } }, children);
}

/** A time as "3 s ago", kept up to date; the exact time is in its title. */
export function timeAgo(ms) {
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
    const text = ago(Number(node.dataset.ago));
    if (node.textContent !== text) node.textContent = text;
  }
}, 1000);

/** A number with its name; `set` changes it. */
export function tile(name, { href, hint } = {}) {
  const value = h("strong", null, "–");
  const detail = h("small", null, "\u00a0");
  const node = h(href ? "a" : "div", { class: "tile", href, title: hint }, h("span", { class: "name" }, name), value, detail);
  return {
    node,
    set(text, detailText = "", tone = "") {
      if (value.textContent !== text) replace(value, text);
      const below = detailText || "\u00a0";
      if (detail.textContent !== below) detail.textContent = below;
      node.dataset.tone = tone;
    },
  };
}

// -- buttons and forms ---------------------------------------------------------------------

/** A button; `onPress` gets the button. */
export const actionButton = (label, onPress, props) =>
  h("button", { type: "button", onClick: (event) => onPress(event.currentTarget), ...props }, label);

/** A labelled input; `hint` is shown below it. */
export function field(label, input, hint) {
  input.id ||= `f${(fieldIds += 1)}`;
  const help = hint && h("small", { id: `${input.id}-hint`, class: "hint" }, hint);
  if (help) input.setAttribute("aria-describedby", help.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, help);
}

let fieldIds = 0;

/** A form in a card; errors of `submit` are shown in it. */
export function formCard(title, label, submit, ...fields) {
  const errors = h("div");
  const onSubmit = async (event) => {
    event.preventDefault();
    replace(errors);
    await submit().catch((error) => replace(errors, errorBox(error)));
  };
  return h("form", { class: "card stack", onSubmit }, h("h2", null, title), fields, errors,
    h("div", { class: "actions" }, h("button", { class: "primary" }, label)));
}

/** A choice of a few options as buttons: segmented("Range", [["1h", "1 h"]], "1h", onPick). */
export function segmented(label, options, value, onPick) {
  const node = h("div", { class: "segmented", role: "group", "aria-label": label });
  const show = (selected) =>
    replace(
      node,
      options.map(([key, text]) =>
        h(
          "button",
          { type: "button", "aria-pressed": String(key === selected), onClick: () => (show(key), onPick(key)) },
          text,
        ),
      ),
    );
  show(value);
  return node;
}

/** A card that is collapsed at first. */
export const collapsible = (title, ...children) => h("details", { class: "card" }, h("summary", null, title), children);

/** Mark a node as busy until the promise has settled; a button is disabled as well. */
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

/** Run the action of a button; an error becomes a toast, success shows `successText`. */
export async function runAction(node, action, successText) {
  try {
    const result = await busy(node, action);
    if (successText) toast(successText, "good");
    return result;
  } catch (error) {
    toast(error.detail ?? error.message, "bad");
    return undefined;
  }
}

/** Copies a text, or what a function returns. */
export function copyButton(text, label = "Copy") {
  const node = h("button", { type: "button", class: "small" }, label);
  node.addEventListener("click", async () => {
    const value = typeof text === "function" ? text() : text;
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      copyBySelection(value); // without TLS there is no clipboard API
    }
    node.textContent = "Copied";
    setTimeout(() => (node.textContent = label), 1500);
  });
  return node;
}

function copyBySelection(value) {
  const area = h("textarea", { value, class: "offscreen", "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// -- messages and dialogs ------------------------------------------------------------------

/** An error as the gateway describes it. */
export function errorBox(error) {
  const details = (error.problem?.errors ?? []).filter((detail) => detail.pointer || detail.field);
  return h(
    "div",
    { class: "box error", role: "alert" },
    h("p", null, error.detail ?? error.message ?? String(error)),
    details.length > 0 &&
      h("ul", null, details.map((d) => h("li", null, h("code", null, d.pointer ?? d.field), " ", d.detail ?? d.message))),
    error.problem?.request_id && h("small", null, `Request ${error.problem.request_id}`),
  );
}

/** A short message in the corner; it disappears after a few seconds. */
export function toast(text, kind = "info") {
  let container = document.querySelector(".toasts");
  if (!container) {
    container = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(container);
  }
  const node = h("div", { class: ["toast", kind] }, text);
  container.append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 4000);
}

/** Ask before an action. `typed`: what the user must type to confirm, such as a count. `no`: label of the other button. */
export function confirmDialog({ title, text, typed = null, yes = "Yes", no = "Cancel", danger = true }) {
  return new Promise((resolve) => {
    const input = typed === null ? null : h("input", { autocomplete: "off", spellcheck: "false" });
    const yesButton = h("button", { class: danger ? "danger" : "primary", value: "yes", disabled: typed !== null }, yes);
    input?.addEventListener("input", () => (yesButton.disabled = input.value.trim() !== String(typed)));
    const dialog = h(
      "dialog",
      { "aria-labelledby": "ask-title", onClose: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "ask-title" }, title),
        [text].flat().map((part) => h("p", null, part)),
        input && field(`Type ${typed} to confirm`, input),
        h("div", { class: "actions" }, h("button", { value: "no", formnovalidate: true }, no), yesButton),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A dialog with any content, closed by Escape or its button. */
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

// -- icons ---------------------------------------------------------------------------------

/** Paths of the icons, on 16 by 16. */
const ICONS = {
  brand: "M1.5 5c2.2-2 4.3-2 6.5 0s4.3 2 6.5 0M1.5 8.5c2.2-2 4.3-2 6.5 0s4.3 2 6.5 0M1.5 12c2.2-2 4.3-2 6.5 0s4.3 2 6.5 0",
  menu: "M2 4h12M2 8h12M2 12h12",
  overview: "M2 13.5h12M4 11V8M7 11V3.5M10 11V6M13 11V9",
  jobs: "M5.5 4H14M5.5 8H14M5.5 12H14M2 4h.5M2 8h.5M2 12h.5",
  play: "M4.5 2.8v10.4L13 8z",
  workflow: "M3.5 5.5a1.75 1.75 0 1 0 0-3.5 1.75 1.75 0 0 0 0 3.5zM12.5 14a1.75 1.75 0 1 0 0-3.5 1.75 1.75 0 0 0 0 3.5zM3.5 5.5v4a2.75 2.75 0 0 0 2.75 2.75h4.5",
  image: "M2 3h12v10H2zM2 11l3.5-3.5L9 11l2-2 3 3M10.5 6h.5",
  bullmq: "M3 2.5c0 2 1 3 3 3h4c2 0 3-1 3-3M4.5 5.5v4L8 13.5l3.5-4v-4M6.5 9h.3M9.2 9h.3",
  worker: "M8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM8 1.5V4M8 12v2.5M1.5 8H4M12 8h2.5M3.4 3.4l1.8 1.8M10.8 10.8l1.8 1.8M12.6 3.4l-1.8 1.8M5.2 10.8l-1.8 1.8",
  queue: "M2 3.5h12v3H2zM2 9.5h12v3H2zM4.5 5h.5M4.5 11h.5",
  dead: "M2 4h12v8.5H2zM2 4.5l6 4.5 6-4.5",
  webhook: "M6.5 9.5l3-3M7 4.5l1.5-1.5a2.9 2.9 0 0 1 4.2 4.2L11 8.8M9 11.5L7.5 13a2.9 2.9 0 0 1-4.2-4.2L5 7.2",
  doctor: "M1.5 8.5h3l2-5 3 9 2-4h3",
  key: "M5 11.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 8.5h6.5v3M11.5 8.5v2",
  log: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM8 4.5V8l2.5 1.8",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z",
  auto: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM8 1.5v13M8 5l5-1M8 8h6.4M8 11l5 1",
};

/** A decorative icon, hidden from screen readers. */
export function icon(name) {
  return svg(
    "svg",
    { class: "ico", viewBox: "0 0 16 16", width: 16, height: 16, fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }),
  );
}
