// The gateway's API as these pages call it.

/** An answer that is an error: its status, stable code, and words for people. */
export class ApiError extends Error {
  constructor(status, code, detail, problem = null) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.problem = problem;
  }
}

/** A path with its parts encoded: url`/v1/jobs/${id}`. */
export function url(strings, ...parts) {
  return strings.reduce((made, text, i) => made + encodeURIComponent(parts[i - 1]) + text);
}

/** Values of an object as a query; empty ones are left out, arrays repeat. */
export function queryOf(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values ?? {})) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  const text = query.toString();
  return text && "?" + text;
}

export const get = async (path, query, options) =>
  parsed(await send("GET", path + queryOf(query), undefined, options));
/** The answer's body as it came: for JSON whose numbers must stay as they are. */
export const text = async (path, query, options) =>
  (await send("GET", path + queryOf(query), undefined, options)).text();
export const post = async (path, body, options) => parsed(await send("POST", path, body, options));
export const put = async (path, body, options) => parsed(await send("PUT", path, body, options));
export const patch = async (path, body, options) =>
  parsed(await send("PATCH", path, body, options));
export const del = async (path, body, options) =>
  parsed(await send("DELETE", path, body, options));

let signedOut = () => {};

/** What to do when an answer says that nobody is signed in. */
export function onSignedOut(fn) {
  signedOut = fn;
}

/** The whole answer; `body` is a Blob or FormData as it is, else JSON. */
export async function send(method, path, body, { headers = {}, signal } = {}) {
  const raw = body instanceof Blob || body instanceof FormData;
  const json = body !== undefined && !raw;
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { "X-Sluice-UI": "1", ...(json && { "Content-Type": "application/json" }), ...headers },
      body: json ? JSON.stringify(body) : body,
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway cannot be reached. Is it running?");
  }
  if (answer.ok) return answer;
  const error = await errorIn(answer);
  if (error.status === 401) signedOut(error);
  throw error;
}

async function parsed(answer) {
  const got = await answer.text();
  if (!got) return null;
  try {
    return JSON.parse(got);
  } catch {
    throw new ApiError(answer.status, "not_json", "The answer is not JSON.");
  }
}

async function errorIn(answer) {
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // Something in between answered; its status is all we know.
  }
  const first = body?.errors?.[0];
  const code = body?.code ?? first?.code ?? String(answer.status);
  const detail = body?.detail ?? first?.message ?? body?.message;
  return new ApiError(answer.status, code, detail ?? `The gateway answered ${answer.status}.`, body);
}

/**
 * Follow an event stream. `events`: type to fn(data, id); `onState`: 'open', 'lost' (the browser
 * tries again by itself, from the last event on) or 'end' (it will not). `until`: types that end it.
 */
export function stream(path, { events = {}, onState = () => {}, until = [] } = {}) {
  const source = new EventSource(path);
  const close = () => source.close();
  source.onopen = () => onState("open");
  source.onerror = () => onState(source.readyState === EventSource.CLOSED ? "end" : "lost");
  for (const type of new Set([...Object.keys(events), ...until])) {
    source.addEventListener(type, (event) => {
      if (!("data" in event) || event.data === undefined) return; // the connection's own "error"
      const last = until.includes(type);
      if (last) close();
      events[type]?.(event.data ? JSON.parse(event.data) : null, event.lastEventId);
      if (last) onState("end");
    });
  }
  return { close };
}
