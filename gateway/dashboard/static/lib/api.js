// Client of the gateway's HTTP API.

/** An error response: its status, stable code, and text for people. */
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
  return strings.reduce((path, text, i) => path + encodeURIComponent(parts[i - 1]) + text);
}

/** A query string with its "?"; empty values are left out, arrays repeat. */
export function queryString(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values ?? {})) {
    for (const item of [value].flat()) {
      if (item !== null && item !== undefined && item !== "") query.append(name, item);
    }
  }
  const text = query.toString();
  return text && "?" + text;
}

export const get = async (path, query, options) =>
  parseJson(await send("GET", path + queryString(query), undefined, options));
/** The response body as text: for JSON whose large numbers must not be rounded. */
export const getText = async (path, query, options) =>
  (await send("GET", path + queryString(query), undefined, options)).text();
export const post = async (path, body, options) => parseJson(await send("POST", path, body, options));
export const put = async (path, body, options) => parseJson(await send("PUT", path, body, options));
export const patch = async (path, body, options) =>
  parseJson(await send("PATCH", path, body, options));
export const del = async (path, body, options) =>
  parseJson(await send("DELETE", path, body, options));

let unauthorized = () => {};

/** Set the handler of 401 responses. */
export function onUnauthorized(handler) {
  unauthorized = handler;
}

/** Returns the Response. `body`: a Blob or FormData is sent unchanged, anything else as JSON. */
export async function send(method, path, body, { headers = {}, signal } = {}) {
  const raw = body instanceof Blob || body instanceof FormData;
  const json = body !== undefined && !raw;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { "X-Sluice-UI": "1", ...(json && { "Content-Type": "application/json" }), ...headers },
      body: json ? JSON.stringify(body) : body,
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway cannot be reached. Is it running?");
  }
  if (response.ok) return response;
  const error = await readError(response);
  if (error.status === 401) unauthorized(error);
  throw error;
}

async function parseJson(response) {
  const text = await response.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(response.status, "not_json", "The response is not JSON.");
  }
}

async function readError(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // A proxy answered instead of the gateway; only the status is known.
  }
  const first = body?.errors?.[0];
  const code = body?.code ?? first?.code ?? String(response.status);
  const detail = body?.detail ?? first?.message ?? body?.message;
  return new ApiError(response.status, code, detail ?? `The gateway responded with status ${response.status}.`, body);
}

/**
 * Open an event stream. `events`: type to fn(data, id); `onState`: 'open', 'lost' (the browser
 * reconnects from the last event) or 'end' (it does not). `until`: types that end the stream.
 */
export function stream(path, { events = {}, onState = () => {}, until = [] } = {}) {
  const source = new EventSource(path);
  const close = () => source.close();
  source.onopen = () => onState("open");
  source.onerror = () => onState(source.readyState === EventSource.CLOSED ? "end" : "lost");
  for (const type of new Set([...Object.keys(events), ...until])) {
    source.addEventListener(type, (event) => {
      if (!("data" in event) || event.data === undefined) return; // EventSource's own "error" event
      const last = until.includes(type);
      if (last) close();
      events[type]?.(event.data ? JSON.parse(event.data) : null, event.lastEventId);
      if (last) onState("end");
    });
  }
  return { close };
}
