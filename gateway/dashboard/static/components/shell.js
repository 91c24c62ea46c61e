// The shell around every page: navigation, state of the live updates, session, preferences.

import { h, replace } from "../lib/dom.js";
import { inUtc, readPreference, setUtc, writePreference } from "../lib/format.js";
import { signOut } from "../lib/session.js";
import { icon, runAction } from "./ui.js";

/** Groups of [path, name, icon, data the session must be able to read, action it must be allowed]. */
const NAVIGATION = [
  [null, [["/ui", "Overview", "overview", "numbers"], ["/ui/jobs", "Jobs", "jobs", "jobs"], ["/ui/playground", "Playground", "play", "jobs", "submit"]]],
  ["Workloads", [["/ui/workflows", "Workflows", "workflow", "jobs"], ["/ui/images", "Images", "image", "jobs"], ["/ui/bullmq", "BullMQ", "bullmq", "jobs"]]],
  ["Queue", [["/ui/workers", "Workers", "worker", "numbers"], ["/ui/queues", "Queues", "queue", "numbers"], ["/ui/dead", "Dead letters", "dead", "all"], ["/ui/webhooks", "Webhooks", "webhook", "all"]]],
  ["Admin", [["/ui/doctor", "Health", "doctor", "jobs"], ["/ui/keys", "Keys", "key", "keys"], ["/ui/trail", "Audit log", "log", "all"]]],
];
/** Label and title of the live button, by state. */
const LIVE_STATES = {
  open: ["Live", "Updates arrive as they happen. Press . to pause."],
  lost: ["Reconnecting", "The gateway does not answer."],
  end: ["Reconnecting", "The gateway does not answer."],
  paused: ["Paused", "Live updates are paused. Press . to resume."],
  idle: ["", ""],
};

export function createShell({ live, refresh }) {
  const main = h("main", { id: "main" });
  const nav = h("nav", { id: "navigation", "aria-label": "Pages" });
  const user = h("div", { class: "user" });
  const liveButton = h("button", { type: "button", class: "live", hidden: true, onClick: () => live.pause() });
  const menu = h("button", { type: "button", class: "icon menu", "aria-controls": "navigation", "aria-expanded": "false", "aria-label": "Pages" }, icon("menu"));
  const openMenu = (open) => {
    menu.setAttribute("aria-expanded", String(open));
    document.body.classList.toggle("nav-open", open);
  };
  menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") === "false"));
  document.addEventListener("keydown", (event) => event.key === "Escape" && openMenu(false));

  document.body.prepend(
    h("a", { class: "skip", href: "#main", onClick: (event) => (event.preventDefault(), main.querySelector("h1")?.focus()) }, "Skip to content"),
    h(
      "header",
      { class: "topbar" },
      menu,
      h("a", { class: "brand", href: "/ui" }, icon("brand"), "Sluice"),
      h("div", { class: "space" }),
      liveButton,
      timeZoneButton(refresh),
      themeButton(refresh),
      user,
    ),
    h("div", { class: "layout" }, nav, main),
  );

  live.on("state", (state) => {
    const [label, title] = LIVE_STATES[state];
    const shown = live.paused && state !== "idle" ? "paused" : state;
    liveButton.hidden = shown === "idle";
    liveButton.dataset.state = shown;
    liveButton.title = title;
    liveButton.setAttribute("aria-pressed", String(live.paused));
    replace(liveButton, h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "label" }, label));
  });

  return {
    main,
    /** Mark the current page in the navigation. */
    setPath(path) {
      openMenu(false);
      for (const link of nav.querySelectorAll("a")) {
        const href = link.getAttribute("href");
        const current = href === "/ui" ? path === "/ui" || path === "/ui/" : path.startsWith(href);
        if (current) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
    },
    /** Show the user, and the pages that the session can open. */
    setSession(session, restart) {
      const allowed = ([, , , data, action]) => session.canRead(data) && (!action || session.can(action));
      replace(nav, NAVIGATION.map(([title, links]) => navGroup(title, links.filter(allowed))));
      replace(nav, ...nav.childNodes, h("p", { class: "version" }, session.version && `Sluice ${session.version}`));
      const name = session.keyId ? session.name : session.name && "operator";
      const details = [session.tenant ? `tenant ${session.tenant}` : "all tenants", session.signedIn && !session.record.actions && "read-only"];
      replace(user, name && h("span", { class: "name", title: details.filter(Boolean).join(", ") }, name), session.signedIn && signOutButton(restart));
      this.setPath(location.pathname);
    },
  };
}

function navGroup(title, links) {
  if (!links.length) return null;
  return h(
    "div",
    { class: "group" },
    title && h("h2", null, title),
    h("ul", null, links.map(([path, name, iconName]) => h("li", null, h("a", { href: path }, icon(iconName), name)))),
  );
}

function signOutButton(restart) {
  const button = h("button", { type: "button", class: "small" }, "Sign out");
  button.addEventListener("click", () => runAction(button, async () => (await signOut(), restart("/ui/login"))));
  return button;
}

function timeZoneButton(refresh) {
  const button = h("button", { type: "button", class: "small time-zone" });
  const show = () => {
    button.textContent = inUtc() ? "UTC" : "Local time";
    button.title = inUtc() ? "Times are in UTC" : "Times are in the browser's time zone";
  };
  button.addEventListener("click", () => (setUtc(!inUtc()), show(), refresh()));
  show();
  return button;
}

function themeButton(refresh) {
  const button = h("button", { type: "button", class: "icon" });
  const next = { auto: "light", light: "dark", dark: "auto" };
  const current = () => readPreference("sluice.theme") ?? "auto";
  const show = () => {
    const theme = current();
    const label = { auto: "System colours", light: "Light colours", dark: "Dark colours" }[theme];
    button.title = label;
    button.setAttribute("aria-label", label);
    replace(button, icon({ auto: "auto", light: "sun", dark: "moon" }[theme]));
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  button.addEventListener("click", () => {
    const theme = next[current()];
    writePreference("sluice.theme", theme === "auto" ? null : theme);
    show();
    refresh();
  });
  show();
  return button;
}
