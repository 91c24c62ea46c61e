// JSON as a collapsible tree. Its own parser keeps what JSON.parse loses: large numbers, the order
// of keys and duplicate keys.

import { h } from "../lib/dom.js";
import { plural, printable } from "../lib/format.js";

const MAX_DEPTH = 200;
const BATCH = 100;
const SPACE = /[ \t\n\r]*/y;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null/y;

/** A tree of JSON text or of a value. Invalid JSON is shown as text. `open`: levels expanded at first. */
export function jsonTree(source, { open = 2 } = {}) {
  const text = typeof source === "string" ? source : (JSON.stringify(source) ?? "null");
  let node;
  try {
    node = new Parser(text).parse();
  } catch {
    return h("pre", { class: "json raw" }, printable(text));
  }
  return h("div", { class: "json" }, renderNode(node, null, open));
}

/** Indented JSON; invalid JSON is returned unchanged. */
export function pretty(text) {
  try {
    return stringify(new Parser(text).parse(), "");
  } catch {
    return text;
  }
}

/** The members of a JSON object, each as indented text; empty if the text is not an object. */
export function members(text) {
  try {
    const { kind, items } = new Parser(text).parse();
    return kind === "object" ? Object.fromEntries(items.map(([key, node]) => [key, stringify(node, "")])) : {};
  } catch {
    return {};
  }
}

class Parser {
  constructor(text) {
    this.text = text;
    this.position = 0;
  }

  parse() {
    const node = this.parseValue(0);
    this.skipSpace();
    if (this.position < this.text.length) throw new SyntaxError("more after the end");
    return node;
  }

  parseValue(depth) {
    if (depth > MAX_DEPTH) throw new SyntaxError("too deep");
    this.skipSpace();
    const char = this.text[this.position];
    if (char === "{") return { kind: "object", items: this.parseItems("}", depth, true) };
    if (char === "[") return { kind: "array", items: this.parseItems("]", depth, false) };
    const text = this.readToken();
    const kind = text[0] === '"' ? "string" : /[-0-9]/.test(text[0]) ? "number" : "literal";
    return { kind, text };
  }

  parseItems(end, depth, named) {
    const items = [];
    this.position += 1;
    if (this.accept(end)) return items;
    do {
      this.skipSpace();
      const key = named ? this.parseKey() : String(items.length);
      items.push([key, this.parseValue(depth + 1)]);
    } while (this.accept(","));
    if (!this.accept(end)) throw new SyntaxError("no end");
    return items;
  }

  parseKey() {
    const text = this.readToken();
    if (text[0] !== '"' || !this.accept(":")) throw new SyntaxError("no key");
    return JSON.parse(text);
  }

  readToken() {
    TOKEN.lastIndex = this.position;
    const match = TOKEN.exec(this.text);
    if (!match) throw new SyntaxError("no value");
    this.position = TOKEN.lastIndex;
    return match[0];
  }

  accept(char) {
    this.skipSpace();
    if (this.text[this.position] !== char) return false;
    this.position += 1;
    return true;
  }

  skipSpace() {
    SPACE.lastIndex = this.position;
    SPACE.exec(this.text);
    this.position = SPACE.lastIndex;
  }
}

function renderNode(node, key, open) {
  const name = key === null ? null : [h("span", { class: "key" }, printable(key)), ": "];
  if (!node.items) return h("div", { class: "leaf" }, name, renderScalar(node));
  const [left, right] = node.kind === "object" ? "{}" : "[]";
  if (!node.items.length) return h("div", { class: "leaf" }, name, left + right);
  const size = plural(node.items.length, node.kind === "object" ? "key" : "item");
  const body = h("div", { class: "children" });
  const details = h(
    "details",
    { open: open > 0 },
    h("summary", null, name, h("span", { class: "size" }, `${left} ${size} ${right}`)),
    body,
  );
  let rendered = 0;
  const renderMore = () => {
    const batch = node.items.slice(rendered, rendered + BATCH);
    body.append(...batch.map(([childKey, child]) => renderNode(child, childKey, open - 1)));
    rendered += batch.length;
    const left = node.items.length - rendered;
    if (!left) return;
    const more = h("button", { type: "button", class: "link" }, `${left} more…`);
    more.addEventListener("click", () => (more.remove(), renderMore()));
    body.append(more);
  };
  // A collapsed node is rendered when it is first expanded.
  if (open > 0) renderMore();
  else details.addEventListener("toggle", renderMore, { once: true });
  return details;
}

function renderScalar({ kind, text }) {
  if (kind !== "string") return h("span", { class: kind }, text);
  let value = text;
  try {
    value = JSON.parse(text);
  } catch {
    // An invalid escape: shown as written.
  }
  return h("span", { class: "string" }, `"${printable(value)}"`);
}

function stringify(node, indent) {
  if (!node.items) return node.text;
  const [left, right] = node.kind === "object" ? "{}" : "[]";
  if (!node.items.length) return left + right;
  const deeper = indent + "  ";
  const lines = node.items.map(([key, child]) => {
    const name = node.kind === "object" ? JSON.stringify(key) + ": " : "";
    return deeper + name + stringify(child, deeper);
  });
  return `${left}\n${lines.join(",\n")}\n${indent}${right}`;
}
