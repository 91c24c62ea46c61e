// Health checks with a fix for each failure, and the integrity check of all jobs.

import { get, send, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { count, duration, humanize } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { actionButton, badge, copyButton, errorBox, pageHead, runAction, timeAgo } from "../components/ui.js";

/** By check: [pattern of its output, command, explanation, page]; the first match counts. */
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
const SEVERITY = ["fail", "warn", "pass"];

export default async function doctor({ session }) {
  const checksCard = h("section", { class: "card" });
  const auditCard = h("section", { class: "card stack" });
  const overall = h("span");
  let previous = "";

  async function loadChecks() {
    const status = await get("/v1/status").catch((error) => error.problem ?? { output: error.detail }); // 503 has the same body
    const results = Object.entries(status.checks ?? {}).flatMap(([name, checks]) => checks.map((check) => [name, check]));
    results.sort(([, a], [, b]) => SEVERITY.indexOf(a.status) - SEVERITY.indexOf(b.status));
    const current = JSON.stringify(results);
    if (current === previous) return;
    previous = current;
    replace(overall, badge(status.status ?? "fail"));
    replace(checksCard, h("div", { class: "card-head" }, h("h2", null, status.output ? "Something should be looked at" : "All is well"),
      status.releaseId && h("small", null, `Sluice ${status.releaseId}, up ${duration(status.uptime_s * 1000)}`)), results.length ? results.map(checkRow) : h("p", null, status.output ?? status.detail));
  }

  async function loadLastAudit() {
    const { last, totals } = await get("/v1/audit");
    showAudit(last.violations, last.violations_total, last.ts ? [`${count(last.jobs_checked)} jobs looked at in ${duration(last.duration_ms)}, `, timeAgo(last.ts), `. ${count(totals.violations)} broken promises over all audits.`] : "There was none yet.");
  }

  function showAudit(violations, total, ...summary) {
    replace(auditCard, h("div", { class: "card-head" }, h("h2", null, "Audit of all jobs"), session.can("admin") && actionButton("Audit now", (button) => runAction(button, runAudit), { class: "small" })),
      h("p", null, summary), total > 0 && h("div", { class: "box error" }, `${total} broken promises`),
      violations.length > 0 && h("ul", null, violations.map((violation) => h("li", null, h("a", { href: url`/ui/jobs/${violation.job_id}` }, violation.job_id), " ", h("code", null, violation.rule), ` ${violation.detail}`))));
  }

  async function runAudit() {
    const violations = [];
    try {
      for await (const line of readJsonLines((await send("POST", "/v1/audit")).body)) {
        if (line.type === "failed") throw new Error(line.detail);
        if (line.type === "violation") violations.push(line);
        showAudit(violations, violations.length, `${count(line.jobs_checked ?? 0)} jobs looked at… `, h("progress", { "aria-label": "Audit" }));
      }
    } finally {
      await loadLastAudit();
    }
  }

  await loadChecks();
  auditCard.hidden = !session.canRead("all");
  if (!auditCard.hidden) await loadLastAudit().catch((error) => replace(auditCard, errorBox(error)));
  return {
    title: "Doctor",
    node: h("div", { class: "stack" }, pageHead("Doctor", overall), checksCard, auditCard,
      h("p", { class: "dim" }, "On the box, ", h("code", null, "sudo sluice doctor"), " looks further: settings, units, disks, the machine. ", copyButton("sudo sluice doctor"))),
    destroy: poll(loadChecks),
  };
}

function checkRow([name, { status, output, last_ts: _, ...facts }]) {
  const [, command, explanation, page] = (output && FIXES[name]?.find(([pattern]) => pattern.test(output))) || [];
  const shownFacts = Object.entries(facts).filter(([key, value]) => value !== null && (typeof value !== "object" || key === "partitions"));
  return h("div", { class: "check-row" }, badge(status),
    h("div", null, h("strong", null, humanize(name)), " ", h("span", { class: "dim small" }, shownFacts.map(([key, value]) => `${key.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : value}`).join(" · ")),
      output && h("p", null, output),
      command && h("p", { class: "small" }, "Fix: ", h("code", null, command), " ", copyButton(command), ` ${explanation} `, page && h("a", { href: page }, "Look"))));
}

/** Parse a stream of JSON lines. */
async function* readJsonLines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) yield JSON.parse(line);
  }
}
