// Shell commands that submit and watch the same job.

import { h } from "../lib/dom.js";
import { copyButton, segmented } from "./ui.js";

const MAX_INLINE_CHARS = 2000;

const shellQuote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Commands by name. `key`: whether the gateway requires an API key. */
export function snippets({ jobId, task, payload, key }) {
  const origin = location.origin;
  const auth = key ? ` \\\n  -H "Authorization: Bearer $SLUICE_API_KEY"` : "";
  const body = `{"task":${JSON.stringify(task)},"payload":${compact(payload)}}`;
  const data = body.length > MAX_INLINE_CHARS ? "@job.json" : shellQuote(body);
  const inline = compact(payload).length > MAX_INLINE_CHARS ? "-f payload.json" : shellQuote(compact(payload));
  const exportUrl = `export SLUICE_URL=${shellQuote(origin)}\n`;
  return {
    curl: `curl -X POST ${origin}/v1/jobs${auth} \\\n  -H 'Content-Type: application/json' \\\n  -d ${data}`,
    "curl, watch": `curl -N ${origin}/v1/jobs/${jobId}/events${auth}`,
    sluice: `${exportUrl}sluice submit ${/^\w+$/.test(task) ? task : shellQuote(task)} ${inline} --stream`,
    "sluice, watch": `${exportUrl}sluice watch ${jobId}`,
  };
}

/** JSON text on one line. Strings are safe: JSON escapes their line breaks. */
const compact = (text) => text.replace(/\n\s*/g, " ");

export function snippetBox(job) {
  const commands = snippets(job);
  const names = Object.keys(commands);
  const code = h("pre", { class: "text-pane snippet", role: "region", "aria-label": "Commands", tabindex: "0" });
  const show = (name) => (code.textContent = commands[name]);
  show(names[0]);
  return h(
    "div",
    { class: "stack" },
    h("div", { class: "row" }, segmented("Snippet", names.map((name) => [name, name]), names[0], show), copyButton(() => code.textContent)),
    code,
  );
}
