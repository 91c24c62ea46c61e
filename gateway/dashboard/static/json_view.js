// JSON as a tree that folds. Read from its text by our own parser, so that large numbers, the
// order of keys and keys that come twice stay as they were sent. Everything in it is text.

import { h } from "./dom.js";
import { visible } from "./format.js";

const DEEPEST = 200;
const AT_ONCE = 100;
const SPACE = /[ \t\n\r]*/y;
const ATOM = /"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null/y;

/** A tree of JSON text, or of a value. What is no JSON is shown as it is. */
export function jsonTree(source, { open = 2 } = {}) {
  const text = typeof source === "string" ? source : (JSON.stringify(source) ?? "null");
  let node;
  try {
    node = new Parser(text).whole();
  } catch {
    return h("pre", { class: "json raw" }, visible(text));
  }
  return h("div", { class: "json" }, shown(node, null, open));
}

/** JSON text with indents; as it is where it is none. */
export function pretty(text) {
  try {
    return written(new Parser(text).whole(), "");
  } catch {
    return text;
  }
}

/** The members of a JSON object, each as text with indents; none where it is no object. */
export function members(text) {
  try {
    const { kind, items } = new Parser(text).whole();
    return kind === "object" ? Object.fromEntries(items.map(([key, node]) => [key, written(node, "")])) : {};
  } catch {
    return {};
  }
}

class Parser {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  whole() {
    const node = this.value(0);
    this.skip();
    if (this.at < this.text.length) throw new SyntaxError("more after the end");
    return node;
  }

  value(depth) {
    if (depth > DEEPEST) throw new SyntaxError("too deep");
    this.skip();
    const sign = this.text[this.at];
    if (sign === "{") return { kind: "object", items: this.items("}", depth, true) };
    if (sign === "[") return { kind: "array", items: this.items("]", depth, false) };
    const text = this.atom();
    const kind = text[0] === '"' ? "string" : /[-0-9]/.test(text[0]) ? "number" : "word";
    return { kind, text };
  }

  items(end, depth, named) {
    const found = [];
    this.at += 1;
    if (this.next(end)) return found;
    do {
      this.skip();
      const key = named ? this.key() : String(found.length);
      found.push([key, this.value(depth + 1)]);
    } while (this.next(","));
    if (!this.next(end)) throw new SyntaxError("no end");
    return found;
  }

  key() {
    const text = this.atom();
    if (text[0] !== '"' || !this.next(":")) throw new SyntaxError("no key");
    return JSON.parse(text);
  }

  atom() {
    ATOM.lastIndex = this.at;
    const match = ATOM.exec(this.text);
    if (!match) throw new SyntaxError("no value");
    this.at = ATOM.lastIndex;
    return match[0];
  }

  next(sign) {
    this.skip();
    if (this.text[this.at] !== sign) return false;
    this.at += 1;
    return true;
  }

  skip() {
    SPACE.lastIndex = this.at;
    SPACE.exec(this.text);
    this.at = SPACE.lastIndex;
  }
}

function shown(node, key, open) {
  const name = key === null ? null : [h("span", { class: "key" }, visible(key)), ": "];
  if (!node.items) return h("div", { class: "leaf" }, name, atom(node));
  const [left, right] = node.kind === "object" ? "{}" : "[]";
  if (!node.items.length) return h("div", { class: "leaf" }, name, left + right);
  const size = `${node.items.length} ${node.kind === "object" ? "keys" : "items"}`;
  const inside = h("div", { class: "inside" });
  const fold = h(
    "details",
    { open: open > 0 },
    h("summary", null, name, h("span", { class: "size" }, `${left} ${size} ${right}`)),
    inside,
  );
  let filled = 0;
  const fill = () => {
    const part = node.items.slice(filled, filled + AT_ONCE);
    inside.append(...part.map(([one, child]) => shown(child, one, open - 1)));
    filled += part.length;
    const left = node.items.length - filled;
    if (!left) return;
    const more = h("button", { type: "button", class: "link" }, `${left} more…`);
    more.addEventListener("click", () => (more.remove(), fill()));
    inside.append(more);
  };
  // What is folded is not made before somebody looks.
  if (open > 0) fill();
  else fold.addEventListener("toggle", fill, { once: true });
  return fold;
}

function atom({ kind, text }) {
  if (kind !== "string") return h("span", { class: kind }, text);
  let value = text;
  try {
    value = JSON.parse(text);
  } catch {
    // An escape that is none: as it was written.
  }
  return h("span", { class: "string" }, `"${visible(value)}"`);
}

function written(node, indent) {
  if (!node.items) return node.text;
  const [left, right] = node.kind === "object" ? "{}" : "[]";
  if (!node.items.length) return left + right;
  const deeper = indent + "  ";
  const lines = node.items.map(([key, child]) => {
    const name = node.kind === "object" ? JSON.stringify(key) + ": " : "";
    return deeper + name + written(child, deeper);
  });
  return `${left}\n${lines.join(",\n")}\n${indent}${right}`;
}
