// Elements without markup: every string becomes a text node, whatever is in it.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("a", {class: "x", href: "/ui", onClick: go}, "text", [more], null). */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same in SVG. */
export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** Put these into a node, in place of what is there. */
export function replace(node, ...children) {
  node.replaceChildren(...flat(children));
  return node;
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.setAttribute("class", [value].flat().filter(Boolean).join(" "));
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2).toLowerCase(), value);
    else if (AS_PROPERTY.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...flat(children));
  return node;
}

// Their attribute is only what they begin with.
const AS_PROPERTY = new Set(["value", "checked", "disabled", "indeterminate", "selected"]);

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false && child !== true)
    .map((child) => (child instanceof Node ? child : String(child)));
}
