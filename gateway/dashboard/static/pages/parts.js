// What the pages about workflows, images, queues and webhooks share.

import { h, replace } from "../dom.js";
import { errorBox } from "../ui.js";

const EVERY_MS = 5000;

export const words = (name) => (name === "waiting_input" ? "waits for you" : String(name ?? "").replaceAll("_", " "));

/** A button; the deed gets it. */
export const press = (label, deed, props) =>
  h("button", { type: "button", onClick: (event) => deed(event.currentTarget), ...props }, label);

/** Draw a part anew; who was at one of its buttons still is. */
export function steady(node, ...children) {
  const able = () => [...node.querySelectorAll("button, input")];
  const at = able().indexOf(document.activeElement);
  replace(node, ...children);
  if (at >= 0) (able()[at] ?? node).focus({ preventScroll: true });
  return node;
}

/** Again every few seconds, while somebody looks; returns how to stop. */
export function often(load) {
  const timer = setInterval(() => document.hidden || load().catch(() => {}), EVERY_MS);
  return () => clearInterval(timer);
}

/** A form in a card that says what is wrong with it. */
export function form(title, label, send, ...fields) {
  const trouble = h("div");
  const onSubmit = async (event) => {
    event.preventDefault();
    replace(trouble);
    await send().catch((error) => replace(trouble, errorBox(error)));
  };
  return h("form", { class: "card stack", onSubmit }, h("h2", null, title), fields, trouble,
    h("div", { class: "actions" }, h("button", { class: "primary" }, label)));
}

export const folded = (title, ...inside) => h("details", { class: "card" }, h("summary", null, title), inside);
