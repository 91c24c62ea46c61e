// The frame around every page: where to go, whether it is live, who is here.

import { del } from "./api.js";
import { h, replace } from "./dom.js";
import { inUtc, remember, remembered, setUtc } from "./format.js";
import { icon } from "./icons.js";
import { act } from "./ui.js";

/** Groups of [path, name, icon, what the caller must be able to read, and perhaps to do]. */
const PLACES = [
  [null, [["/ui", "Overview", "overview", "numbers"], ["/ui/jobs", "Jobs", "jobs", "jobs"], ["/ui/playground", "Playground", "play", "jobs", "submit"]]],
  ["Work", [["/ui/workflows", "Workflows", "flow", "jobs"], ["/ui/images", "Images", "image", "jobs"], ["/ui/bullmq", "BullMQ", "bull", "jobs"]]],
  ["Engine", [["/ui/workers", "Workers", "worker", "numbers"], ["/ui/queues", "Queues", "queue", "numbers"], ["/ui/dead", "Dead letters", "dead", "all"], ["/ui/webhooks", "Webhooks", "hook", "all"]]],
  ["House", [["/ui/doctor", "Doctor", "doctor", "jobs"], ["/ui/keys", "Keys", "key", "keys"], ["/ui/trail", "Trail", "trail", "all"]]],
];
const STATES = {
  open: ["Live", "Updates arrive as they happen. Press . to pause."],
  lost: ["Reconnecting", "The gateway does not answer; trying again."],
  end: ["Reconnecting", "The gateway does not answer; trying again."],
  paused: ["Paused", "Nothing is updated. Press . to go on."],
  idle: ["", ""],
};

export function frame({ live, refresh }) {
  const main = h("main", { id: "main" });
  const nav = h("nav", { id: "places", "aria-label": "Pages" });
  const who = h("div", { class: "who" });
  const liveButton = h("button", { type: "button", class: "live", hidden: true, onClick: () => live.pause() });
  const menu = h("button", { type: "button", class: "icon menu", "aria-controls": "places", "aria-expanded": "false", "aria-label": "Pages" }, icon("menu"));
  const open = (wanted) => {
    menu.setAttribute("aria-expanded", String(wanted));
    document.body.classList.toggle("nav-open", wanted);
  };
  menu.addEventListener("click", () => open(menu.getAttribute("aria-expanded") === "false"));
  document.addEventListener("keydown", (event) => event.key === "Escape" && open(false));

  document.body.prepend(
    h("a", { class: "skip", href: "#main", onClick: (event) => (event.preventDefault(), main.querySelector("h1")?.focus()) }, "Skip to content"),
    h(
      "header",
      { class: "top" },
      menu,
      h("a", { class: "brand", href: "/ui" }, icon("brand"), "Sluice"),
      h("div", { class: "space" }),
      liveButton,
      zoneButton(refresh),
      themeButton(refresh),
      who,
    ),
    h("div", { class: "body" }, nav, main),
  );

  live.on("state", (state) => {
    const [word, title] = STATES[state];
    const shown = live.paused && state !== "idle" ? "paused" : state;
    liveButton.hidden = shown === "idle";
    liveButton.dataset.state = shown;
    liveButton.title = title;
    liveButton.setAttribute("aria-pressed", String(live.paused));
    replace(liveButton, h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "word" }, word));
  });

  return {
    main,
    /** Mark where we are. */
    here(path) {
      open(false);
      for (const link of nav.querySelectorAll("a")) {
        const href = link.getAttribute("href");
        const current = href === "/ui" ? path === "/ui" || path === "/ui/" : path.startsWith(href);
        if (current) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
    },
    /** Show who is here, and the pages that are there for them. */
    known(me, signedIn) {
      replace(nav, PLACES.map(([title, places]) => group(title, places.filter(([, , , sight, deed]) => me.reads(sight) && (!deed || me.may(deed))))));
      replace(nav, ...nav.childNodes, h("p", { class: "version" }, me.version && `Sluice ${me.version}`));
      const name = me.keyId ? me.name : me.name && "operator";
      const words = [me.tenant ? `tenant ${me.tenant}` : "all tenants", me.signedIn && !me.session.actions && "only looking"];
      replace(who, name && h("span", { class: "name", title: words.filter(Boolean).join(", ") }, name), me.signedIn && outButton(signedIn));
      this.here(location.pathname);
    },
  };
}

function group(title, places) {
  if (!places.length) return null;
  return h(
    "div",
    { class: "group" },
    title && h("h2", null, title),
    h("ul", null, places.map(([path, name, sign]) => h("li", null, h("a", { href: path }, icon(sign), name)))),
  );
}

function outButton(signedIn) {
  const button = h("button", { type: "button", class: "small" }, "Sign out");
  button.addEventListener("click", () => act(button, async () => (await del("/ui/session"), signedIn("/ui/login"))));
  return button;
}

function zoneButton(refresh) {
  const button = h("button", { type: "button", class: "small zone" });
  const show = () => {
    button.textContent = inUtc() ? "UTC" : "Local";
    button.title = inUtc() ? "Times are in UTC" : "Times are in this browser's zone";
  };
  button.addEventListener("click", () => (setUtc(!inUtc()), show(), refresh()));
  show();
  return button;
}

function themeButton(refresh) {
  const button = h("button", { type: "button", class: "icon" });
  const next = { auto: "light", light: "dark", dark: "auto" };
  const now = () => remembered("sluice.theme") ?? "auto";
  const show = () => {
    const theme = now();
    const words = { auto: "Colours as the system has them", light: "Light colours", dark: "Dark colours" }[theme];
    button.title = words;
    button.setAttribute("aria-label", words);
    replace(button, icon({ auto: "auto", light: "sun", dark: "moon" }[theme]));
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  button.addEventListener("click", () => {
    const theme = next[now()];
    remember("sluice.theme", theme === "auto" ? null : theme);
    show();
    refresh();
  });
  show();
  return button;
}
