// Entry point of the dashboard: routes, navigation, session.

import { createShell } from "./components/shell.js";
import { installShortcuts } from "./components/keyboard.js";
import { errorBox } from "./components/ui.js";
import { onUnauthorized } from "./lib/api.js";
import { h, replace } from "./lib/dom.js";
import { live } from "./lib/live.js";
import { Session, loadSession } from "./lib/session.js";

const page = (name) => () => import(`./pages/${name}.js`);

/** Paths of the pages; {id} matches one segment. */
const ROUTES = [
  ["/ui", page("overview")],
  ["/ui/jobs", page("jobs/jobs")],
  ["/ui/jobs/{id}", page("jobs/job")],
  ["/ui/playground", page("jobs/playground")],
  ["/ui/workers", page("workers")],
  ["/ui/queues", page("queues")],
  ["/ui/dead", page("dead_letters")],
  ["/ui/workflows", page("workflows/workflows")],
  ["/ui/workflows/{id}", page("workflows/workflow")],
  ["/ui/images", page("images/images")],
  ["/ui/images/{id}", page("images/image")],
  ["/ui/bullmq", page("bullmq")],
  ["/ui/webhooks", page("workflows/webhooks")],
  ["/ui/doctor", page("doctor")],
  ["/ui/keys", page("keys")],
  ["/ui/trail", page("audit_log")],
  ["/ui/login", page("login")],
];

const LOGIN = "/ui/login";
let session = new Session(null);
let currentPage = null;
let renderCount = 0;

const shell = createShell({ live, refresh: render });

/** Open a page of the dashboard; `replace` adds no entry to the history. */
function navigate(path, { replace: replaceEntry = false } = {}) {
  history[replaceEntry ? "replaceState" : "pushState"](null, "", path);
  return render();
}

/** Change the query without loading the page again; null and '' remove a parameter. */
function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    query.delete(name);
    for (const item of [value].flat()) if (item !== null && item !== undefined && item !== "") query.append(name, item);
  }
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text && "?" + text));
}

function matchRoute(path) {
  const segments = path.replace(/\/+$/, "").split("/");
  for (const [pattern, load] of ROUTES) {
    const parts = pattern.split("/");
    if (parts.length !== segments.length) continue;
    const params = {};
    const matches = parts.every((part, i) => {
      if (!part.startsWith("{")) return part === segments[i];
      params[part.slice(1, -1)] = decode(segments[i]);
      return Boolean(params[part.slice(1, -1)]);
    });
    if (matches) return { load, params };
  }
  return null;
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return "";
  }
}

/** Render the page of the current address; dropped if another one was opened while it was loading. */
async function render() {
  const renderId = (renderCount += 1);
  const path = location.pathname;
  const route = matchRoute(path);
  shell.setPath(path);
  currentPage?.destroy?.();
  currentPage = null;
  let built;
  try {
    if (!route) throw new Error("Page not found.");
    const { default: build } = await route.load();
    if (renderId !== renderCount) return;
    built = await build({
      params: route.params,
      query: new URLSearchParams(location.search),
      navigate,
      setQuery,
      session,
      onSessionChange,
    });
  } catch (error) {
    if (error.status === 401) return;
    built = { title: "Error", node: h("div", null, h("h1", { tabindex: "-1" }, "Error"), errorBox(error)) };
  }
  if (renderId !== renderCount) {
    built.destroy?.();
    return;
  }
  currentPage = built;
  document.title = `${built.title} · Sluice`;
  replace(shell.main, built.node);
  if (renderId > 1) {
    window.scrollTo(0, 0);
    shell.main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

/** After signing in or out: load the session again and open a page. */
async function onSessionChange(path = "/ui") {
  await reloadSession();
  live.restart();
  return navigate(path, { replace: true });
}

async function reloadSession() {
  session = await loadSession();
  shell.setSession(session, onSessionChange);
  return session;
}

function openLogin() {
  if (location.pathname === LOGIN) return undefined;
  const back = encodeURIComponent(location.pathname + location.search);
  return navigate(`${LOGIN}?back=${back}`, { replace: true });
}

onUnauthorized(openLogin);
// EventSource does not expose the status of a refused stream: the session may have expired.
live.on("state", (state) => {
  if (state === "end") reloadSession().then(() => session.signInNeeded && openLogin(), () => {});
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
  if (!/^\/ui(\/|$)/.test(link.pathname) || link.pathname.startsWith("/ui/static/")) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
});
addEventListener("popstate", render);
installShortcuts({ navigate, live, page: () => currentPage });

try {
  await reloadSession();
  await (session.signInNeeded && location.pathname !== LOGIN ? openLogin() : render());
} catch (error) {
  replace(shell.main, errorBox(error));
}
