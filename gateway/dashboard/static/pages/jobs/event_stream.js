// The event stream of one job, of all event types, as JSON lines.

import { send, url } from "../../lib/api.js";

const FINAL_TYPES = new Set(["done", "error", "canceled", "gone"]);
const MAX_RETRY_MS = 5000;

/**
 * `onEvent(event, line)`; `onState`: 'open', 'lost' or 'end'. A lost connection is resumed after the
 * last event; while the page is hidden there is none.
 */
export function followEvents(jobId, { onEvent, onState = () => {} }) {
  let aborter = null;
  let timer = 0;
  let lastId = "";
  let retryMs = 500;
  let ended = false;

  async function connect() {
    clearTimeout(timer);
    aborter = new AbortController();
    const controller = aborter;
    try {
      const headers = { Accept: "application/x-ndjson" };
      const path = url`/v1/jobs/${jobId}/events` + (lastId && `?last_event_id=${lastId}`);
      const response = await send("GET", path, undefined, { headers, signal: controller.signal });
      if (response.status === 204) return finish();
      onState("open");
      retryMs = 500;
      await read(response.body.getReader(), controller);
    } catch (error) {
      if (controller.signal.aborted) return;
      if (error.status >= 400 && error.status < 500 && error.status !== 429) return finish(error);
    }
    if (ended || controller !== aborter) return;
    aborter = null;
    onState("lost");
    timer = setTimeout(connect, retryMs);
    retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
  }

  async function read(reader, controller) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || controller.signal.aborted) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) handleLine(line);
    }
  }

  function handleLine(line) {
    const event = JSON.parse(line);
    if (event.id) lastId = event.id;
    if (event.type !== "heartbeat" && event.type !== "hello") onEvent(event, line);
    if (FINAL_TYPES.has(event.type)) finish();
  }

  function finish(error) {
    if (ended) return;
    ended = true;
    onState("end", error);
  }

  function onVisibilityChange() {
    if (ended) return;
    if (document.hidden) {
      clearTimeout(timer);
      aborter?.abort();
      aborter = null;
    } else if (!aborter) {
      connect();
    }
  }

  document.addEventListener("visibilitychange", onVisibilityChange);
  onVisibilityChange();
  return {
    close() {
      ended = true;
      clearTimeout(timer);
      aborter?.abort();
      document.removeEventListener("visibilitychange", onVisibilityChange);
    },
  };
}
