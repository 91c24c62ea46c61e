// API keys: list, create, rotate, revoke.

import { del, get, post, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { busy, confirmDialog, copyButton, errorBox, field, pageHead, runAction, showDialog, table, timeAgo } from "../components/ui.js";

const SCOPES = [
  ["jobs:write", "submit and cancel jobs"],
  ["jobs:read", "read and watch jobs"],
  ["ui", "sign in to the dashboard and read"],
  ["metrics", "read metrics and status"],
  ["admin", "everything, for all tenants"],
];
const TASKS = ["chat", "plan", "code", "tool", "rag", "embed"];
const DAY_S = 86_400;

export default async function page({ session }) {
  const list = h("div", { class: "card" });
  const load = async () => {
    try {
      replace(list, keyTable((await get("/v1/keys")).items));
    } catch (error) {
      replace(list, errorBox(error));
    }
  };
  const keyTable = (keys) =>
    table({
      caption: plural(keys.length, "key"),
      empty: "No API keys. Requests from other machines may need one; create it here.",
      rows: keys,
      columns: [
        { name: "Name", cell: (key) => [h("strong", null, key.name), h("div", { class: "dim" }, h("code", null, key.key_id), key.key_id === session.keyId && " · current session")] },
        { name: "Tenant", cell: (key) => key.tenant ?? h("span", { class: "dim" }, "all") },
        { name: "Permissions", cell: (key) => h("div", { class: "chips" }, key.scopes.map((scope) => h("span", { class: "chip" }, scope)), limitLabels(key).map((text) => h("span", { class: "chip dim" }, text))) },
        { name: "Last used", align: "right", wide: true, cell: (key) => (key.last_used_ts ? timeAgo(key.last_used_ts) : "never") },
        { name: "Expires", align: "right", wide: true, cell: (key) => (key.expires_ts ? timeAgo(key.expires_ts) : "never") },
        session.can("admin") && { name: h("span", { class: "offscreen" }, "Actions"), align: "right", cell: (key) => actionButtons(key) },
      ].filter(Boolean),
    });
  const actionButtons = (key) => {
    const rotate = h("button", { type: "button", class: "small", "aria-label": `Rotate ${key.name}` }, "Rotate");
    const revoke = h("button", { type: "button", class: "small danger", "aria-label": `Revoke ${key.name}` }, "Revoke");
    rotate.addEventListener("click", async () => {
      const confirmed = await confirmDialog({ title: `Rotate ${key.name}?`, text: "Creates a new secret. The old one stays valid for a day.", yes: "Rotate", danger: false });
      if (!confirmed) return;
      const issued = await runAction(rotate, () => post(url`/v1/keys/${key.key_id}/rotate`));
      if (issued) {
        showSecret(issued);
        load();
      }
    });
    revoke.addEventListener("click", async () => {
      const confirmed = await confirmDialog({ title: `Revoke ${key.name}?`, text: "The key stops working at once, and its sessions end. This cannot be undone.", yes: "Revoke" });
      if (confirmed) await runAction(revoke, async () => (await del(url`/v1/keys/${key.key_id}`), load()), "Revoked.");
    });
    return h("div", { class: "actions end" }, rotate, revoke);
  };
  const createButton = session.can("admin") && h("button", { type: "button", class: "primary", onClick: () => openCreateDialog(load) }, "New key");
  await load();
  return { title: "Keys", node: h("div", null, pageHead("Keys", createButton), list), keys: createButton ? { n: () => openCreateDialog(load) } : {}, help: createButton ? [["n", "new key"]] : undefined };
}

function limitLabels({ limits, tasks, tools, secrets }) {
  return [
    tasks && `only ${tasks.join(", ")}`,
    tools && (tools.length ? `tools: ${tools.join(", ")}` : "no tools"),
    limits.rate_per_min && `${count(limits.rate_per_min)}/min`,
    limits.max_jobs && `max ${plural(limits.max_jobs, "unfinished job")}`,
    secrets > 1 && "two secrets",
  ].filter(Boolean);
}

function showSecret(issued) {
  showDialog(
    "API key",
    h("p", null, `${issued.name}: copy the key now. It is not shown again.`),
    h("pre", { class: "secret" }, issued.key),
    h("div", null, copyButton(issued.key)),
  );
}

function openCreateDialog(onCreated) {
  const name = h("input", { required: true, maxlength: 100, autocomplete: "off", autofocus: true });
  const tenant = h("input", { pattern: "[a-z0-9][a-z0-9\\-]{0,62}", autocomplete: "off", placeholder: "all" });
  const scopes = SCOPES.map(([scope, text]) => checkbox(scope, text, ["jobs:write", "jobs:read"].includes(scope)));
  const tasks = TASKS.map((task) => checkbox(task, "", false));
  const days = h("input", { type: "number", min: 1, max: 3650, placeholder: "never" });
  const rate = h("input", { type: "number", min: 0.001, step: "any", placeholder: "any" });
  const maxJobs = h("input", { type: "number", min: 1, placeholder: "any" });
  const errors = h("div");
  const submitButton = h("button", { class: "primary" }, "Create key");
  const checkedValues = (choices) => choices.filter(({ input }) => input.checked).map(({ value }) => value);
  const dialog = h(
    "dialog",
    { "aria-labelledby": "new-key", onClose: () => dialog.remove() },
    h(
      "form",
      null,
      h("h2", { id: "new-key" }, "New key"),
      field("Name", name, "Who uses it, and for what."),
      field("Tenant", tenant, "The key creates and sees only jobs of this tenant. Empty: all tenants."),
      h("fieldset", null, h("legend", null, "Scopes"), scopes.map(({ node }) => node)),
      h("fieldset", { class: "inline" }, h("legend", null, "Allowed tasks (none selected: all)"), tasks.map(({ node }) => node)),
      h("div", { class: "three-columns" }, field("Expires after (days)", days), field("Jobs per minute", rate), field("Max. unfinished jobs", maxJobs)),
      errors,
      h("div", { class: "actions" }, h("button", { type: "button", onClick: () => dialog.close() }, "Cancel"), submitButton),
    ),
  );
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    replace(errors);
    const request = {
      name: name.value.trim(),
      tenant: tenant.value || null,
      scopes: checkedValues(scopes),
      tasks: checkedValues(tasks).length ? checkedValues(tasks) : null,
      expires_s: days.value ? Number(days.value) * DAY_S : null,
      rate_per_min: rate.value ? Number(rate.value) : null,
      max_jobs: maxJobs.value ? Number(maxJobs.value) : null,
    };
    try {
      const issued = await busy(submitButton, () => post("/v1/keys", request));
      dialog.close();
      showSecret(issued);
      onCreated();
    } catch (error) {
      replace(errors, errorBox(error));
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

function checkbox(value, text, checked) {
  const input = h("input", { type: "checkbox", id: `may-${value}`, checked });
  return { value, input, node: h("div", { class: "check" }, input, h("label", { for: input.id }, h("code", null, value), text && h("small", null, ` ${text}`))) };
}
