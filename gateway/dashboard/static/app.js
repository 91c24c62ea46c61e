// The shell: who is here, which page, the keys.

import { get, onSignedOut } from "./api.js";
import { h, replace } from "./dom.js";
import { Me } from "./me.js";
import { keyboard } from "./keyboard.js";
import { live } from "./live.js";
import { frame } from "./frame.js";
import { errorBox } from "./ui.js";

const page = (name) => () => import(`./pages/${name}.js`);

/** Path to page. {id} is any one part. */
const ROUTES = [
  ["/ui", page("overview")],
  ["/ui/jobs", page("jobs")],
  ["/ui/jobs/{id}", page("job")],
  ["/ui/playground", page("playground")],
  ["/ui/workers", page("workers")],
  ["/ui/queues", page("queues")],
  ["/ui/dead", page("dead")],
  ["/ui/workflows", page("workflows")],
  ["/ui/workflows/{id}", page("workflow")],
  ["/ui/images", page("images")],
  ["/ui/images/{id}", page("image")],
  ["/ui/bullmq", page("bullmq")],
  ["/ui/webhooks", page("webhooks")],
  ["/ui/doctor", page("doctor")],
  ["/ui/keys", page("keys")],
  ["/ui/trail", page("trail")],
  ["/ui/login", page("login")],
];

const LOGIN = "/ui/login";
let me = new Me(null);
let current = null;
let turn = 0;

const shell = frame({ live, refresh: show });

/** Go to a page of ours; `replace` leaves no step back. */
function navigate(path, { replace: instead = false } = {}) {
  history[instead ? "replaceState" : "pushState"](null, "", path);
  return show();
}

/** Change the query in place; null and '' remove. The page stays as it is. */
function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    query.delete(name);
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== "") query.append(name, one);
  }
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text && "?" + text));
}

function found(path) {
  const parts = path.replace(/\/+$/, "").split("/");
  for (const [pattern, load] of ROUTES) {
    const wanted = pattern.split("/");
    if (wanted.length !== parts.length) continue;
    const params = {};
    const fits = wanted.every((part, i) => {
      if (!part.startsWith("{")) return part === parts[i];
      params[part.slice(1, -1)] = decoded(parts[i]);
      return Boolean(params[part.slice(1, -1)]);
    });
    if (fits) return { load, params };
  }
  return null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

/** Show what the address says. A page that took too long to come is let go. */
async function show() {
  const mine = (turn += 1);
  const path = location.pathname;
  const route = found(path);
  shell.here(path);
  current?.destroy?.();
  current = null;
  let made;
  try {
    if (!route) throw new Error("There is no such page.");
    const { default: build } = await route.load();
    if (mine !== turn) return;
    made = await build({
      params: route.params,
      query: new URLSearchParams(location.search),
      navigate,
      setQuery,
      me,
      signedIn,
    });
  } catch (error) {
    if (error.status === 401) return;
    made = { title: "Sorry", node: h("div", null, h("h1", { tabindex: "-1" }, "Sorry"), errorBox(error)) };
  }
  if (mine !== turn) {
    made.destroy?.();
    return;
  }
  current = made;
  document.title = `${made.title} · Sluice`;
  replace(shell.main, made.node);
  if (mine > 1) {
    window.scrollTo(0, 0);
    shell.main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

/** Ask again who we are, and begin anew. */
async function signedIn(path = "/ui") {
  await know();
  live.restart();
  return navigate(path, { replace: true });
}

async function know() {
  me = new Me(await get("/ui/session"));
  shell.known(me, signedIn);
  return me;
}

function toLogin() {
  if (location.pathname === LOGIN) return undefined;
  const back = encodeURIComponent(location.pathname + location.search);
  return navigate(`${LOGIN}?back=${back}`, { replace: true });
}

onSignedOut(toLogin);
// A stream that was refused does not say why: perhaps the session is over.
live.on("state", (state) => {
  if (state === "end") know().then(() => me.signInNeeded && toLogin(), () => {});
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
addEventListener("popstate", show);
keyboard({ navigate, live, page: () => current, me: () => me });

try {
  await know();
  await (me.signInNeeded && location.pathname !== LOGIN ? toLogin() : show());
} catch (error) {
  replace(shell.main, errorBox(error));
}
