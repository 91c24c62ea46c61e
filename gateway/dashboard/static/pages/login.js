// Sign-in with an API key.

import { h, replace } from "../lib/dom.js";
import { returnPath, signIn } from "../lib/session.js";
import { busy, errorBox, field, icon } from "../components/ui.js";

export default async function page({ query, session, onSessionChange }) {
  const key = h("input", { type: "password", name: "key", required: true, autocomplete: "current-password", placeholder: "sluice_…", autofocus: true });
  const actions = h("input", { type: "checkbox", id: "actions" });
  const submitButton = h("button", { class: "primary" }, "Sign in");
  const errors = h("div");
  const form = h(
    "form",
    { class: "stack" },
    h("input", { type: "text", autocomplete: "username", value: "sluice", hidden: true }), // for password managers
    field("API key", key, "A key with the scope ui or admin. It is not stored in the browser."),
    h("div", { class: "check" }, actions, h("label", { for: "actions" }, "Allow actions", h("small", null, " Otherwise the session is read-only."))),
    errors,
    submitButton,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    replace(errors);
    try {
      await busy(submitButton, () => signIn(key.value.trim(), actions.checked));
      await onSessionChange(returnPath(query.get("back")));
    } catch (error) {
      replace(errors, errorBox(error));
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
        h("p", { class: "dim" }, session.signInNeeded ? "This gateway requires an API key." : `You are ${session.keyId ? `signed in as ${session.name}` : "the operator of this machine"}. Sign in to use another key.`),
        form,
        h("p", { class: "dim small" }, "No key yet? Create one on the gateway's machine: ", h("code", null, "sluice key create --name me --scope admin")),
      ),
    ),
  };
}
