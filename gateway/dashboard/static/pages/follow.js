// A job's events as they come, of every type and as they were sent: lines of JSON.

import { send, url } from "../api.js";

const LAST = new Set(["done", "error", "canceled", "gone"]);
const SLOWEST_MS = 5000;

/**
 * `onEvent(event, line)` for each; `onState`: 'open', 'lost' or 'end'. A broken line is taken up
 * where it broke; a page that nobody sees does not hold one.
 */
export function follow(jobId, { onEvent, onState = () => {} }) {
  let aborter = null;
  let timer = 0;
  let last = "";
  let wait = 500;
  let over = false;

  async function run() {
    clearTimeout(timer);
    aborter = new AbortController();
    const mine = aborter;
    try {
      const headers = { Accept: "application/x-ndjson" };
      const path = url`/v1/jobs/${jobId}/events` + (last && `?last_event_id=${last}`);
      const answer = await send("GET", path, undefined, { headers, signal: mine.signal });
      if (answer.status === 204) return finish();
      onState("open");
      wait = 500;
      await read(answer.body.getReader(), mine);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status >= 400 && error.status < 500 && error.status !== 429) return finish(error);
    }
    if (over || mine !== aborter) return;
    aborter = null;
    onState("lost");
    timer = setTimeout(run, wait);
    wait = Math.min(wait * 2, SLOWEST_MS);
  }

  async function read(reader, mine) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || mine.signal.aborted) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) take(line);
    }
  }

  function take(line) {
    const event = JSON.parse(line);
    if (event.id) last = event.id;
    if (event.type !== "heartbeat" && event.type !== "hello") onEvent(event, line);
    if (LAST.has(event.type)) finish();
  }

  function finish(error) {
    if (over) return;
    over = true;
    onState("end", error);
  }

  function look() {
    if (over) return;
    if (document.hidden) {
      clearTimeout(timer);
      aborter?.abort();
      aborter = null;
    } else if (!aborter) {
      run();
    }
  }

  document.addEventListener("visibilitychange", look);
  look();
  return {
    close() {
      over = true;
      clearTimeout(timer);
      aborter?.abort();
      document.removeEventListener("visibilitychange", look);
    },
  };
}
