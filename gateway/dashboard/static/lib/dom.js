// DOM elements built without markup: every string becomes a text node, so no input can inject HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("a", {class: "x", href: "/ui", onClick: handler}, "text", [children], null). */
export function h(tag, props, ...children) {
  return init(document.createElement(tag), props, children);
}

/** The same in the SVG namespace. */
export function svg(tag, props, ...children) {
  return init(document.createElementNS(SVG, tag), props, children);
}

/** Replace the children of a node. */
export function replace(node, ...children) {
  node.replaceChildren(...flatten(children));
  return node;
}

/** The same; the focus stays on the button or input at the same position. */
export function replaceKeepingFocus(node, ...children) {
  const focusable = () => [...node.querySelectorAll("button, input")];
  const index = focusable().indexOf(document.activeElement);
  replace(node, ...children);
  if (index >= 0) (focusable()[index] ?? node).focus({ preventScroll: true });
  return node;
}

function init(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.setAttribute("class", [value].flat().filter(Boolean).join(" "));
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2).toLowerCase(), value);
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...flatten(children));
  return node;
}

// Set as properties: the attribute of the same name is only the initial value.
const PROPERTIES = new Set(["value", "checked", "disabled", "indeterminate", "selected"]);

function flatten(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false && child !== true)
    .map((child) => (child instanceof Node ? child : String(child)));
}
