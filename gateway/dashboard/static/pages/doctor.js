// How every part is, what the last audit found, and what to do about each fault.

import { get, send, url } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration } from "../format.js";
import { act, badge, copyButton, errorBox, pageHead, when } from "../ui.js";
import { often, press, words } from "./parts.js";

/** By part: [what its words have, what to type, what else, where to look]; the first that fits. */
const FIXES = {
  redis: [
    [/cannot be written/, "df -h", "Free some space, then redis-cli BGREWRITEAOF."],
    [/append-only/, "redis-cli CONFIG SET appendonly yes", "And the same in redis.conf."],
    [/memory/, "redis-cli CONFIG SET maxmemory 1gb", "Or keep jobs for a shorter time: JOB_TTL_S."],
    [/^partition/, "sluice doctor", "It says which server has the partition, and whether it runs."],
    [/./, "systemctl status redis", "Does it run, and is REDIS_URL right?"],
  ],
  workers: [
    [/holds off/, "sluice worker ls", "It goes on when memory and heat allow it, or the queue is resumed.", "/ui/queues"],
    [/./, "systemctl start redis-echo-worker", "By hand: python -m worker."],
  ],
  queue: [[/./, "sluice top", "Start more workers, or raise MAX_INFLIGHT.", "/ui/queues"]],
  dead_letters: [[/./, "sluice dlq ls", "Mend the cause, then redrive.", "/ui/dead"]],
  workflows: [[/./, "sluice workflow webhooks", "Mend the receiver, then send them again.", "/ui/webhooks"]],
  images: [[/./, "redis-cli XRANGE image:result:dlq - + COUNT 5", "Another pipeline's entries that make no sense."]],
  pressure: [[/./, "sluice doctor", "Give the box memory or air: what runs goes on, new work waits."]],
  model: [[/./, "sluice model serve", "Or mend the server at MODEL_URL; jobs wait for it.", "/ui/workers"]],
  limits: [[/./, "sluice stats", "Jobs beyond the limit wait.", "/ui/workers"]],
  waiting: [[/./, "sluice worker ls", "No worker does this task, or its model is away.", "/ui/workers"]],
  clock: [[/./, "timedatectl set-ntp true", "On both machines."]],
  audit: [[/./, "sluice audit", "Each broken promise names its job."]],
};
const WORST = ["fail", "warn", "pass"];

export default async function doctor({ me }) {
  const parts = h("section", { class: "card" });
  const audits = h("section", { class: "card stack" });
  const overall = h("span");
  let before = "";

  async function look() {
    const status = await get("/v1/status").catch((error) => error.problem ?? { output: error.detail }); // 503 tells as much
    const found = Object.entries(status.checks ?? {}).flatMap(([name, checks]) => checks.map((check) => [name, check]));
    found.sort(([, a], [, b]) => WORST.indexOf(a.status) - WORST.indexOf(b.status));
    const now = JSON.stringify(found);
    if (now === before) return;
    before = now;
    replace(overall, badge(status.status ?? "fail"));
    replace(parts, h("div", { class: "card-head" }, h("h2", null, status.output ? "Something should be looked at" : "All is well"),
      status.releaseId && h("small", null, `Sluice ${status.releaseId}, up ${duration(status.uptime_s * 1000)}`)), found.length ? found.map(part) : h("p", null, status.output ?? status.detail));
  }

  async function last() {
    const { last: found, totals } = await get("/v1/audit");
    audit(found.violations, found.violations_total, found.ts ? [`${count(found.jobs_checked)} jobs looked at in ${duration(found.duration_ms)}, `, when(found.ts), `. ${count(totals.violations)} broken promises over all audits.`] : "There was none yet.");
  }

  function audit(violations, total, ...told) {
    replace(audits, h("div", { class: "card-head" }, h("h2", null, "Audit of all jobs"), me.may("admin") && press("Audit now", (at) => act(at, run), { class: "small" })),
      h("p", null, told), total > 0 && h("div", { class: "box error" }, `${total} broken promises`),
      violations.length > 0 && h("ul", null, violations.map((each) => h("li", null, h("a", { href: url`/ui/jobs/${each.job_id}` }, each.job_id), " ", h("code", null, each.rule), ` ${each.detail}`))));
  }

  async function run() {
    const found = [];
    try {
      for await (const line of lines((await send("POST", "/v1/audit")).body)) {
        if (line.type === "failed") throw new Error(line.detail);
        if (line.type === "violation") found.push(line);
        audit(found, found.length, `${count(line.jobs_checked ?? 0)} jobs looked at… `, h("progress", { "aria-label": "Audit" }));
      }
    } finally {
      await last();
    }
  }

  await look();
  audits.hidden = !me.reads("all");
  if (!audits.hidden) await last().catch((error) => replace(audits, errorBox(error)));
  return {
    title: "Doctor",
    node: h("div", { class: "stack" }, pageHead("Doctor", overall), parts, audits,
      h("p", { class: "dim" }, "On the box, ", h("code", null, "sudo sluice doctor"), " looks further: settings, units, disks, the machine. ", copyButton("sudo sluice doctor"))),
    destroy: often(look),
  };
}

function part([name, { status, output, last_ts: _, ...facts }]) {
  const [, command, more, place] = (output && FIXES[name]?.find(([says]) => says.test(output))) || [];
  const told = Object.entries(facts).filter(([key, value]) => value !== null && (typeof value !== "object" || key === "partitions"));
  return h("div", { class: "part" }, badge(status),
    h("div", null, h("strong", null, words(name)), " ", h("span", { class: "dim small" }, told.map(([key, value]) => `${key.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : value}`).join(" · ")),
      output && h("p", null, output),
      command && h("p", { class: "small" }, "Fix: ", h("code", null, command), " ", copyButton(command), ` ${more} `, place && h("a", { href: place }, "Look"))));
}

/** JSON, line by line, as it comes. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const all = (rest + value).split("\n");
    rest = all.pop();
    for (const line of all) yield JSON.parse(line);
  }
}
