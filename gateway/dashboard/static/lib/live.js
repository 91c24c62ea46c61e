// One event stream for the whole page. It is closed while the tab is hidden, and catches up later.
//
// live.on('stats' | 'jobs' | 'state' | 'resync', fn) → off(). 'state': 'open', 'lost', 'paused',
// 'end' or 'idle'. 'resync': events may have been missed, so data read earlier must be read again.

import { stream } from "./api.js";

const PATH = "/v1/stream";
const RETRY_MS = 5000;
const POLL_MS = 5000;
const listeners = { stats: new Set(), jobs: new Set(), state: new Set(), resync: new Set() };

let source = null;
let state = "idle";
let pausedByUser = false;
let interrupted = false;
let lastId = "";
let retryTimer = 0;

export const live = {
  on(type, fn) {
    listeners[type].add(fn);
    if (type === "state") fn(state);
    update();
    return () => {
      listeners[type].delete(fn);
      update();
    };
  },
  get paused() {
    return pausedByUser;
  },
  /** Toggled by the user; a hidden page is paused in any case. */
  pause(paused = !pausedByUser) {
    pausedByUser = paused;
    update();
  },
  /** Start over after the session has changed: another session sees other data. */
  restart() {
    stop("idle");
    interrupted = false;
    update();
  },
};

/** Call `load` every few seconds while the page is visible; returns a function that stops it. */
export function poll(load) {
  const timer = setInterval(() => document.hidden || load().catch(() => {}), POLL_MS);
  return () => clearInterval(timer);
}

/** Open or close the stream, by its listeners and the visibility of the page. */
function update() {
  const needed = listeners.stats.size + listeners.jobs.size > 0;
  const paused = pausedByUser || document.hidden;
  if (needed && !paused) start();
  else stop(needed ? "paused" : "idle");
}

function start() {
  clearTimeout(retryTimer);
  if (source) return;
  const after = lastId ? `?last_event_id=${encodeURIComponent(lastId)}` : "";
  source = stream(PATH + after, {
    events: {
      stats: (data, id) => emit("stats", data, id),
      jobs: (data, id) => emit("jobs", data, id),
    },
    onState: onStreamState,
  });
}

function stop(next) {
  clearTimeout(retryTimer);
  if (source) {
    source.close();
    source = null;
    interrupted = true;
  }
  setState(next);
}

function onStreamState(next) {
  if (next === "open" && interrupted) {
    interrupted = false;
    setState("open");
    emit("resync");
    return;
  }
  if (next !== "open") interrupted = true;
  if (next === "end") {
    source = null;
    // EventSource does not retry after an error response; a starting gateway sends some.
    retryTimer = setTimeout(update, RETRY_MS);
  }
  setState(next);
}

function emit(type, data, id) {
  if (id) lastId = id;
  for (const fn of [...listeners[type]]) fn(data, id);
}

function setState(next) {
  if (next === state) return;
  state = next;
  emit("state", next);
}

document.addEventListener("visibilitychange", update);
