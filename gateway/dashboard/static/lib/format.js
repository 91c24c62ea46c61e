// Numbers, times and names as text. Times are milliseconds since 1970.

const STEPS = [
  [1000, "s", 1000],
  [60_000, "min", 60_000],
  [3_600_000, "h", 3_600_000],
  [86_400_000, "d", 86_400_000],
];

/** "3 s ago", "in 2 min". */
export function ago(ms, now = Date.now()) {
  if (!isNumber(ms)) return "–";
  const past = now - ms;
  if (Math.abs(past) < 1000) return "now";
  const [, unit, size] = STEPS.findLast(([from]) => Math.abs(past) >= from);
  const amount = `${Math.floor(Math.abs(past) / size)} ${unit}`;
  return past > 0 ? `${amount} ago` : `in ${amount}`;
}

/** "0.4 ms", "12 ms", "1.3 s", "4 min 12 s", "2 h 5 min". */
export function duration(ms) {
  if (!isNumber(ms)) return "–";
  if (ms < 1) return ms > 0 ? `${ms.toFixed(1)} ms` : "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return pair(s, 60, "min", "s");
  if (s < 86_400) return pair(Math.floor(s / 60), 60, "h", "min");
  return pair(Math.floor(s / 3600), 24, "d", "h");
}

function pair(small, size, big, unit) {
  const rest = small % size;
  return `${Math.floor(small / size)} ${big}` + (rest ? ` ${rest} ${unit}` : "");
}

/** "812 B", "1.2 MB"; powers of 1024. */
export function bytes(n) {
  if (!isNumber(n)) return "–";
  let unit = 0;
  let size = Math.abs(n);
  while (size >= 1000 && unit < 4) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit && size < 10 ? 1 : 0;
  return `${n < 0 ? "-" : ""}${size.toFixed(digits)} ${["B", "KB", "MB", "GB", "TB"][unit]}`;
}

/** "12,345"; "0.25" for small ones. */
export function count(n) {
  if (!isNumber(n)) return "–";
  const digits = Number.isInteger(n) || Math.abs(n) >= 100 ? 0 : Math.abs(n) >= 10 ? 1 : 2;
  return n.toLocaleString("en", { maximumFractionDigits: digits });
}

/** "1 job", "2 jobs". */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** The beginning of an id; show the whole id in the title. */
export const shortId = (id) => (String(id).length > 13 ? String(id).slice(0, 8) : String(id));

/** "14:03:09"; with the date unless it is today. */
export function clock(ms, { date = false, fraction = false } = {}) {
  if (!isNumber(ms)) return "–";
  const time = new Date(ms);
  if (Number.isNaN(time.getTime())) return "–";
  const text = inUtc() ? time.toISOString() : toLocalIso(time);
  const today = (inUtc() ? new Date().toISOString() : toLocalIso(new Date())).slice(0, 10);
  const clockTime = text.slice(11, fraction ? 23 : 19);
  return date || text.slice(0, 10) !== today ? `${text.slice(0, 10)} ${clockTime}` : clockTime;
}

function toLocalIso(time) {
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString();
}

/** Whether times are shown in UTC instead of the browser's time zone. */
export const inUtc = () => readPreference("sluice.utc") === "1";
export const setUtc = (utc) => writePreference("sluice.utc", utc ? "1" : null);

/** A preference stored in this browser; null if it is unset or there is no storage. */
export function readPreference(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function writePreference(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // Without storage it is lost on reload.
  }
}

/** Replace control and bidirectional characters by visible ones; line breaks stay. */
export const printable = (text) =>
  String(text).replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (c) => {
    const code = c.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨${code.toString(16).toUpperCase()}⟩`;
  });

/** A name of the API as a label: "waiting_input" → "waiting for input", "step_one" → "step one". */
export const humanize = (name) => (name === "waiting_input" ? "waiting for input" : String(name ?? "").replaceAll("_", " "));

const isNumber = (n) => typeof n === "number" && Number.isFinite(n);
