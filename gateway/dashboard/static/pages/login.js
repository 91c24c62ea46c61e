// Signing in with a key.

import { post } from "../api.js";
import { back } from "../back.js";
import { h, replace } from "../dom.js";
import { icon } from "../icons.js";
import { busy, errorBox, field } from "../ui.js";

export default async function page({ query, me, signedIn }) {
  const key = h("input", { type: "password", name: "key", required: true, autocomplete: "current-password", placeholder: "sluice_…", autofocus: true });
  const actions = h("input", { type: "checkbox", id: "actions" });
  const go = h("button", { class: "primary" }, "Sign in");
  const trouble = h("div");
  const form = h(
    "form",
    { class: "stack" },
    h("input", { type: "text", autocomplete: "username", value: "sluice", hidden: true }), // for password managers
    field("API key", key, "One with the scope ui, or admin. It is not kept in this browser."),
    h("div", { class: "check" }, actions, h("label", { for: "actions" }, "Allow actions", h("small", null, " Without, this session only looks."))),
    trouble,
    go,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    replace(trouble);
    try {
      await busy(go, () => post("/ui/session", { key: key.value.trim(), actions: actions.checked }));
      await signedIn(back(query.get("back")));
    } catch (error) {
      replace(trouble, errorBox(error));
      key.select();
    }
  });
  return {
    title: "Sign in",
    node: h(
      "section",
      { class: "login" },
      h("div", { class: "card" },
        h("div", { class: "mark" }, icon("brand")),
        h("h1", { tabindex: "-1" }, "Sign in"),
        h("p", { class: "dim" }, me.signInNeeded ? "This gateway wants a key." : `You are ${me.keyId ? me.name : "this machine's operator"}. Sign in to be somebody else.`),
        form,
        h("p", { class: "dim small" }, "No key yet? On the machine itself: ", h("code", null, "sluice key create --name me --scope admin")),
      ),
    ),
  };
}
