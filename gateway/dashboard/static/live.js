// One event stream for the whole page. It rests while nobody looks, and then catches up.
//
// live.on('stats' | 'jobs' | 'state' | 'again', fn) → off(). 'state': 'open', 'lost', 'paused',
// 'end' or 'idle'. 'again': it runs after a break, so what was read before may be old: read anew.

import { stream } from "./api.js";

const PATH = "/v1/stream";
const AGAIN_MS = 5000;
const listeners = { stats: new Set(), jobs: new Set(), state: new Set(), again: new Set() };

let source = null;
let state = "idle";
let pressed = false;
let broken = false;
let lastId = "";
let retry = 0;

export const live = {
  on(type, fn) {
    listeners[type].add(fn);
    if (type === "state") fn(state);
    settle();
    return () => {
      listeners[type].delete(fn);
      settle();
    };
  },
  get paused() {
    return pressed;
  },
  /** What the user wants; a hidden page rests in any case. */
  pause(wanted = !pressed) {
    pressed = wanted;
    settle();
  },
  /** Another caller sees other things: begin anew. */
  restart() {
    stop("idle");
    broken = false;
    settle();
  },
};

function settle() {
  const wanted = listeners.stats.size + listeners.jobs.size > 0;
  const resting = pressed || document.hidden;
  if (wanted && !resting) start();
  else stop(wanted ? "paused" : "idle");
}

function start() {
  clearTimeout(retry);
  if (source) return;
  const after = lastId ? `?last_event_id=${encodeURIComponent(lastId)}` : "";
  source = stream(PATH + after, {
    events: {
      stats: (data, id) => tell("stats", data, id),
      jobs: (data, id) => tell("jobs", data, id),
    },
    onState: changed,
  });
}

function stop(next) {
  clearTimeout(retry);
  if (source) {
    source.close();
    source = null;
    broken = true;
  }
  say(next);
}

function changed(next) {
  if (next === "open" && broken) {
    broken = false;
    say("open");
    tell("again");
    return;
  }
  if (next !== "open") broken = true;
  if (next === "end") {
    source = null;
    // The browser gives up on an answer that is an error; a gateway that starts gives some.
    retry = setTimeout(settle, AGAIN_MS);
  }
  say(next);
}

function tell(type, data, id) {
  if (id) lastId = id;
  for (const fn of [...listeners[type]]) fn(data, id);
}

function say(next) {
  if (next === state) return;
  state = next;
  tell("state", next);
}

document.addEventListener("visibilitychange", settle);
