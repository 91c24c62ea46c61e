// A long table of which only the rows near the window are in the page. All rows are equally high.

import { h } from "../dom.js";

const MORE = 12; // rows beyond either edge, so that scrolling and j/k find some

/**
 * Columns as ui.table's, but `name` and classes only. `make(item)` → {tr, update(item)}; items have
 * a `key`. `onEnd()` is called whenever the last row is near.
 */
export function windowed({ caption, columns, make, onEnd = () => {} }) {
  const above = spacer();
  const below = spacer();
  const body = h("tbody", null, above, below);
  const grid = h(
    "table",
    { class: "rows" },
    h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", { "aria-rowindex": 1 }, columns.map((c) => h("th", { scope: "col", class: c.class }, c.name)))),
    body,
  );
  let items = [];
  let rows = new Map();
  let height = 41;
  let measured = false;
  let asked = 0;

  function draw() {
    asked = 0;
    if (!grid.isConnected) return;
    const top = body.getBoundingClientRect().top;
    const first = Math.max(0, Math.min(Math.floor(-top / height) - MORE, items.length - MORE));
    const last = Math.min(items.length, Math.ceil((innerHeight - top) / height) + MORE);
    const kept = new Map();
    for (const item of items.slice(first, last)) kept.set(item.key, rows.get(item.key) ?? make(item));
    for (const [key, row] of rows) if (!kept.has(key)) row.tr.remove();
    rows = kept;
    stretch(above, first * height);
    stretch(below, (items.length - last) * height);
    // What stays is not moved: it would lose the focus.
    let next = above.nextSibling;
    let index = first;
    for (const item of items.slice(first, last)) {
      const row = kept.get(item.key);
      row.update(item);
      row.tr.setAttribute("aria-rowindex", (index += 1) + 1);
      if (row.tr === next) next = next.nextSibling;
      else body.insertBefore(row.tr, next);
    }
    grid.setAttribute("aria-rowcount", items.length + 1);
    if (!measured && rows.size) measure();
    if (items.length && last >= items.length - MORE) onEnd();
  }

  function measure() {
    const real = above.nextSibling.getBoundingClientRect().height;
    measured = real > 0;
    if (!measured || Math.abs(real - height) < 0.1) return;
    height = real;
    later();
  }

  function resized() {
    measured = false;
    later();
  }

  function later() {
    asked ||= requestAnimationFrame(draw);
  }

  addEventListener("scroll", later, { passive: true });
  addEventListener("resize", resized);
  return {
    node: h("div", { class: "scroll" }, grid),
    show(all) {
      items = all;
      later();
    },
    destroy() {
      cancelAnimationFrame(asked);
      removeEventListener("scroll", later);
      removeEventListener("resize", resized);
    },
  };
}

function spacer() {
  return h("tr", { class: "spacer", "aria-hidden": "true", hidden: true }, h("td"));
}

function stretch(row, px) {
  row.hidden = px <= 0;
  row.firstChild.style.height = `${Math.max(0, px)}px`;
}
