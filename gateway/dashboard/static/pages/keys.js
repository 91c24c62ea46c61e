// API keys: who has one, what for.

import { del, get, post, url } from "../api.js";
import { h, replace } from "../dom.js";
import { count } from "../format.js";
import { act, busy, confirmDialog, copyButton, errorBox, field, pageHead, showDialog, table, when } from "../ui.js";

const SCOPES = [
  ["jobs:write", "submit and cancel jobs"],
  ["jobs:read", "read and watch jobs"],
  ["ui", "sign in here, and read"],
  ["metrics", "numbers for monitoring"],
  ["admin", "everything, for every tenant"],
];
const TASKS = ["chat", "plan", "code", "tool", "rag", "embed"];
const DAY_S = 86_400;

export default async function page({ me }) {
  const list = h("div", { class: "card" });
  const load = async () => {
    try {
      replace(list, shown((await get("/v1/keys")).items));
    } catch (error) {
      replace(list, errorBox(error));
    }
  };
  const shown = (keys) =>
    table({
      caption: `${count(keys.length)} ${keys.length === 1 ? "key" : "keys"}`,
      empty: "There is no key. On this machine none is needed; for others, make one.",
      rows: keys,
      columns: [
        { name: "Name", cell: (key) => [h("strong", null, key.name), h("div", { class: "dim" }, h("code", null, key.key_id), key.key_id === me.keyId && " · this is you")] },
        { name: "Tenant", cell: (key) => key.tenant ?? h("span", { class: "dim" }, "all") },
        { name: "May", cell: (key) => h("div", { class: "chips" }, key.scopes.map((scope) => h("span", { class: "chip" }, scope)), limits(key).map((words) => h("span", { class: "chip dim" }, words))) },
        { name: "Used", align: "right", wide: true, cell: (key) => (key.last_used_ts ? when(key.last_used_ts) : "never") },
        { name: "Expires", align: "right", wide: true, cell: (key) => (key.expires_ts ? when(key.expires_ts) : "never") },
        me.may("admin") && { name: h("span", { class: "offscreen" }, "Actions"), align: "right", cell: (key) => buttons(key) },
      ].filter(Boolean),
    });
  const buttons = (key) => {
    const rotate = h("button", { type: "button", class: "small", "aria-label": `Rotate ${key.name}` }, "Rotate");
    const revoke = h("button", { type: "button", class: "small danger", "aria-label": `Revoke ${key.name}` }, "Revoke");
    rotate.addEventListener("click", async () => {
      const sure = await confirmDialog({ title: `A new secret for ${key.name}?`, text: "The old one stays good for a day.", yes: "Rotate", danger: false });
      if (!sure) return;
      const issued = await act(rotate, () => post(url`/v1/keys/${key.key_id}/rotate`));
      if (issued) {
        reveal(issued);
        load();
      }
    });
    revoke.addEventListener("click", async () => {
      const sure = await confirmDialog({ title: `Revoke ${key.name}?`, text: "Nobody gets in by it from then on, and its sessions end. This cannot be undone.", yes: "Revoke" });
      if (sure) await act(revoke, async () => (await del(url`/v1/keys/${key.key_id}`), load()), "Revoked.");
    });
    return h("div", { class: "actions end" }, rotate, revoke);
  };
  const make = me.may("admin") && h("button", { type: "button", class: "primary", onClick: () => creating(load) }, "New key");
  await load();
  return { title: "Keys", node: h("div", null, pageHead("Keys", make), list), keys: make ? { n: () => creating(load) } : {}, help: make ? [["n", "new key"]] : undefined };
}

function limits({ limits: bounds, tasks, tools, secrets }) {
  return [
    tasks && `only ${tasks.join(", ")}`,
    tools && (tools.length ? `tools: ${tools.join(", ")}` : "no tools"),
    bounds.rate_per_min && `${count(bounds.rate_per_min)}/min`,
    bounds.max_jobs && `${count(bounds.max_jobs)} jobs at once`,
    secrets > 1 && "two secrets",
  ].filter(Boolean);
}

function reveal(issued) {
  showDialog(
    "The key, this once",
    h("p", null, `${issued.name}: copy it now. Nobody can show it again.`),
    h("pre", { class: "secret" }, issued.key),
    h("div", null, copyButton(issued.key)),
  );
}

function creating(done) {
  const name = h("input", { required: true, maxlength: 100, autocomplete: "off", autofocus: true });
  const tenant = h("input", { pattern: "[a-z0-9][a-z0-9\\-]{0,62}", autocomplete: "off", placeholder: "all" });
  const scopes = SCOPES.map(([scope, words]) => choice(scope, words, ["jobs:write", "jobs:read"].includes(scope)));
  const tasks = TASKS.map((task) => choice(task, "", false));
  const days = h("input", { type: "number", min: 1, max: 3650, placeholder: "never" });
  const rate = h("input", { type: "number", min: 0.001, step: "any", placeholder: "any" });
  const most = h("input", { type: "number", min: 1, placeholder: "any" });
  const trouble = h("div");
  const go = h("button", { class: "primary" }, "Make it");
  const picked = (choices) => choices.filter(({ input }) => input.checked).map(({ value }) => value);
  const dialog = h(
    "dialog",
    { "aria-labelledby": "new-key", onClose: () => dialog.remove() },
    h(
      "form",
      null,
      h("h2", { id: "new-key" }, "New key"),
      field("Name", name, "Who has it, and what for."),
      field("Tenant", tenant, "Whose jobs it makes and sees. Without one, everybody's."),
      h("fieldset", null, h("legend", null, "It may"), scopes.map(({ node }) => node)),
      h("fieldset", { class: "across" }, h("legend", null, "Only these tasks (none ticked: all)"), tasks.map(({ node }) => node)),
      h("div", { class: "three" }, field("Good for days", days), field("Jobs a minute", rate), field("Jobs at once", most)),
      trouble,
      h("div", { class: "actions" }, h("button", { type: "button", onClick: () => dialog.close() }, "Cancel"), go),
    ),
  );
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    replace(trouble);
    const wanted = {
      name: name.value.trim(),
      tenant: tenant.value || null,
      scopes: picked(scopes),
      tasks: picked(tasks).length ? picked(tasks) : null,
      expires_s: days.value ? Number(days.value) * DAY_S : null,
      rate_per_min: rate.value ? Number(rate.value) : null,
      max_jobs: most.value ? Number(most.value) : null,
    };
    try {
      const issued = await busy(go, () => post("/v1/keys", wanted));
      dialog.close();
      reveal(issued);
      done();
    } catch (error) {
      replace(trouble, errorBox(error));
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

function choice(value, words, checked) {
  const input = h("input", { type: "checkbox", id: `may-${value}`, checked });
  return { value, input, node: h("div", { class: "check" }, input, h("label", { for: input.id }, h("code", null, value), words && h("small", null, ` ${words}`))) };
}
