// Submits a job and follows it, directly with the gateway: `node watch.mjs "hello"`.
//
// `submit` and `watch` use only `fetch`, so they run in Node and in browsers. Unlike EventSource,
// `fetch` can send an API key. SLUICE_URL and SLUICE_API_KEY are read in Node only.

const PAUSE_MS = 1000;
const ENDS = ["done", "error", "canceled"];

function headersFor(key, more) {
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

/** Submits a job and returns its id. `idempotencyKey` makes a repetition safe. */
export async function submit(url, task, payload, { key, idempotencyKey = crypto.randomUUID() } = {}) {
  const headers = headersFor(key, {
    "Content-Type": "application/json",
    "Idempotency-Key": idempotencyKey,
  });
  const body = JSON.stringify({ task, payload });
  const response = await fetch(`${url}/v1/jobs`, { method: "POST", headers, body });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${answer.code}: ${answer.detail}`);
  return answer.job_id;
}

/** Yields the events of a job, each once and in order, and reconnects until the last one. */
export async function* watch(url, jobId, { key } = {}) {
  let last = "";
  for (;;) {
    try {
      const more = last ? { "Last-Event-ID": last } : {};
      const headers = headersFor(key, { Accept: "application/x-ndjson", ...more });
      const response = await fetch(`${url}/v1/jobs/${jobId}/events`, { headers });
      if (response.status === 204) return; // ended, nothing follows
      if (response.status >= 400 && response.status < 500) {
        throw new Refused(`${(await response.json()).code}`);
      }
      if (response.ok) {
        for await (const event of lines(response.body)) {
          if (!event.id) continue; // hello, heartbeat and other messages of the gateway itself
          last = event.id;
          yield event;
          if (ENDS.includes(event.type)) return;
        }
      }
    } catch (error) {
      if (error instanceof Refused) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

class Refused extends Error {}

/** The JSON values of a stream with one per line. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) if (part) yield JSON.parse(part);
    }
  } finally {
    await reader.cancel(); // closes the connection if the caller stops early
  }
}

if (globalThis.process?.argv[1]?.endsWith("watch.mjs")) {
  const url = process.env.SLUICE_URL ?? "http://localhost:8080";
  const key = process.env.SLUICE_API_KEY;
  const jobId = await submit(url, "chat", { text: process.argv[2] ?? "hello" }, { key });
  for await (const event of watch(url, jobId, { key })) {
    console.log(event.type, JSON.stringify(event.data));
  }
}
