// A table that renders only the rows near the viewport. All rows have the same height.

import { h } from "../lib/dom.js";

const OVERSCAN = 12; // rows rendered beyond either edge, for scrolling and the keys j and k

/**
 * Columns: {name, class}. `createRow(item)` → {tr, update(item)}; items have a `key`. `onEnd()` is
 * called whenever the last row is near the viewport.
 */
export function virtualList({ caption, columns, createRow, onEnd = () => {} }) {
  const topSpacer = createSpacer();
  const bottomSpacer = createSpacer();
  const body = h("tbody", null, topSpacer, bottomSpacer);
  const tableNode = h(
    "table",
    { class: "rows" },
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", null, h("tr", { "aria-rowindex": 1 }, columns.map((c) => h("th", { scope: "col", class: c.class }, c.name)))),
    body,
  );
  let items = [];
  let rows = new Map();
  let height = 41;
  let measured = false;
  let frame = 0;

  function draw() {
    frame = 0;
    if (!tableNode.isConnected) return;
    const top = body.getBoundingClientRect().top;
    const first = Math.max(0, Math.min(Math.floor(-top / height) - OVERSCAN, items.length - OVERSCAN));
    const last = Math.min(items.length, Math.ceil((innerHeight - top) / height) + OVERSCAN);
    const visibleRows = new Map();
    for (const item of items.slice(first, last)) visibleRows.set(item.key, rows.get(item.key) ?? createRow(item));
    for (const [key, row] of rows) if (!visibleRows.has(key)) row.tr.remove();
    rows = visibleRows;
    setHeight(topSpacer, first * height);
    setHeight(bottomSpacer, (items.length - last) * height);
    // Rows that stay are not moved: they would lose the focus.
    let next = topSpacer.nextSibling;
    let index = first;
    for (const item of items.slice(first, last)) {
      const row = visibleRows.get(item.key);
      row.update(item);
      row.tr.setAttribute("aria-rowindex", (index += 1) + 1);
      if (row.tr === next) next = next.nextSibling;
      else body.insertBefore(row.tr, next);
    }
    tableNode.setAttribute("aria-rowcount", items.length + 1);
    if (!measured && rows.size) measure();
    if (items.length && last >= items.length - OVERSCAN) onEnd();
  }

  function measure() {
    const actual = topSpacer.nextSibling.getBoundingClientRect().height;
    measured = actual > 0;
    if (!measured || Math.abs(actual - height) < 0.1) return;
    height = actual;
    scheduleDraw();
  }

  function onResize() {
    measured = false;
    scheduleDraw();
  }

  function scheduleDraw() {
    frame ||= requestAnimationFrame(draw);
  }

  addEventListener("scroll", scheduleDraw, { passive: true });
  addEventListener("resize", onResize);
  return {
    node: h("div", { class: "scroll" }, tableNode),
    show(newItems) {
      items = newItems;
      scheduleDraw();
    },
    destroy() {
      cancelAnimationFrame(frame);
      removeEventListener("scroll", scheduleDraw);
      removeEventListener("resize", onResize);
    },
  };
}

function createSpacer() {
  return h("tr", { class: "spacer", "aria-hidden": "true", hidden: true }, h("td"));
}

function setHeight(row, px) {
  row.hidden = px <= 0;
  row.firstChild.style.height = `${Math.max(0, px)}px`;
}
