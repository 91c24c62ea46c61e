// The same job from a terminal.

import { h } from "../dom.js";
import { copyButton, segmented } from "../ui.js";

const LONG = 2000;

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Lines for a shell. `key`: whether the gateway wants one. */
export function snippets({ jobId, task, payload, key }) {
  const origin = location.origin;
  const auth = key ? ` \\\n  -H "Authorization: Bearer $SLUICE_API_KEY"` : "";
  const body = `{"task":${JSON.stringify(task)},"payload":${compact(payload)}}`;
  const data = body.length > LONG ? "@job.json" : quoted(body);
  const inline = compact(payload).length > LONG ? "-f payload.json" : quoted(compact(payload));
  const to = `export SLUICE_URL=${quoted(origin)}\n`;
  return {
    curl: `curl -X POST ${origin}/v1/jobs${auth} \\\n  -H 'Content-Type: application/json' \\\n  -d ${data}`,
    "curl, watch": `curl -N ${origin}/v1/jobs/${jobId}/events${auth}`,
    sluice: `${to}sluice submit ${/^\w+$/.test(task) ? task : quoted(task)} ${inline} --stream`,
    "sluice, watch": `${to}sluice watch ${jobId}`,
  };
}

/** JSON text on one line; line breaks within strings are escaped in any JSON. */
const compact = (text) => text.replace(/\n\s*/g, " ");

export function snippetBox(given) {
  const all = snippets(given);
  const names = Object.keys(all);
  const code = h("pre", { class: "flow snippet", role: "region", "aria-label": "Commands", tabindex: "0" });
  const show = (name) => (code.textContent = all[name]);
  show(names[0]);
  return h(
    "div",
    { class: "stack" },
    h("div", { class: "row" }, segmented("Snippet", names.map((name) => [name, name]), names[0], show), copyButton(() => code.textContent)),
    code,
  );
}
