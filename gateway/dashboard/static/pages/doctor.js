// Health checks with a fix for each failure, and the integrity check of all jobs.

import { get, send, url } from "../lib/api.js";
import { h, replace } from "../lib/dom.js";
import { ago, count, duration, humanize, plural } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { actionButton, badge, copyButton, errorBox, pageHead, runAction, timeAgo } from "../components/ui.js";

/** By check: [pattern of its output, command, explanation, page]; the first match counts. */
const FIXES = {
  redis: [
    [/cannot be written/, "df -h", "Free disk space, then run redis-cli BGREWRITEAOF."],
    [/append-only/, "redis-cli CONFIG SET appendonly yes", "Set it in redis.conf as well."],
    [/memory/, "redis-cli CONFIG SET maxmemory 1gb", "Or keep jobs for a shorter time (JOB_TTL_S)."],
    [/^partition/, "sluice doctor", "Shows which server has the partition, and whether it runs."],
    [/./, "systemctl status redis", "Check that Redis runs and that REDIS_URL is right."],
  ],
  workers: [
    [/takes no jobs/, "sluice worker ls", "The worker continues when memory and temperature allow it, or when the queue is resumed.", "/ui/queues"],
    [/./, "systemctl start redis-echo-worker", "Without systemd: python -m sluice.worker."],
  ],
  queue: [[/./, "sluice top", "Start more workers, or raise MAX_INFLIGHT.", "/ui/queues"]],
  dead_letters: [[/./, "sluice dlq ls", "Fix the cause, then redrive.", "/ui/dead"]],
  workflows: [[/./, "sluice workflow webhooks", "Fix the receiver, then send them again.", "/ui/webhooks"]],
  images: [[/./, "redis-cli XRANGE image:result:dlq - + COUNT 5", "Invalid results, written by another pipeline."]],
  pressure: [[/./, "sluice doctor", "Free memory or improve the cooling. Running jobs continue, new ones wait."]],
  model: [[/./, "sluice model serve", "Or fix the server at MODEL_URL; jobs wait for it.", "/ui/workers"]],
  limits: [[/./, "sluice stats", "Jobs beyond the limit wait.", "/ui/workers"]],
  waiting: [[/./, "sluice worker ls", "No worker runs this task, or its model is down.", "/ui/workers"]],
  clock: [[/./, "timedatectl set-ntp true", "Run it on both machines."]],
  audit: [[/./, "sluice audit", "Each violation names its job."]],
};

const percent = (share) => `${Math.round(100 * share)} %`;
const age = (seconds) => (seconds < 1 ? "less than 1 s ago" : ago(Date.now() - 1000 * seconds));

/** Facts of a check by its name. Facts without a value are left out. */
const FACTS = {
  redis: (check) => [
    check.redis_version && `Redis ${check.redis_version}`,
    check.rtt_ms != null && `round trip ${duration(check.rtt_ms)}`,
    check.memory_ratio != null && `${percent(check.memory_ratio)} of memory used`,
    check.persistence,
    check.partitions && `${check.partitions.length === 1 ? "partition" : "partitions"} ${check.partitions.join(", ")}`,
  ],
  workers: (check) => [
    plural(check.number, "worker"),
    check.number > 0 && `${count(check.busy)} of ${plural(check.slots, "slot")} busy`,
    check.draining > 0 && `${count(check.draining)} draining`,
    check.holding > 0 && `${count(check.holding)} on hold`,
    check.oldest_heartbeat_s != null && `${check.number === 1 ? "last" : "oldest"} heartbeat ${age(check.oldest_heartbeat_s)}`,
  ],
  queue: (check) => [
    check.depth != null && `${count(check.depth)} waiting`,
    check.pending != null && `${count(check.pending)} in progress`,
    `limit ${count(check.backlog_limit)}`,
    check.oldest_age_s > 0 && `oldest ${duration(1000 * check.oldest_age_s)}`,
    `${count(check.drain_per_s)} finished per second`,
  ],
  scheduled: (check) => [check.number != null && plural(check.number, "job")],
  dead_letters: (check) => [check.number != null && plural(check.number, "dead letter")],
  workflows: (check) => [
    check.running != null && `${count(check.running)} running`,
    check.waiting_input != null && `${count(check.waiting_input)} waiting for input`,
    check.webhooks_waiting != null && `${plural(check.webhooks_waiting, "webhook")} pending`,
    check.webhooks_dead != null && `${count(check.webhooks_dead)} failed`,
  ],
  images: (check) => [
    check.inflight != null && `${count(check.inflight)} in progress`,
    check.results_lag != null && `${plural(check.results_lag, "result")} waiting`,
    check.results_pending != null && `${count(check.results_pending)} being stored`,
    check.dead_results != null && `${count(check.dead_results)} invalid`,
  ],
  pressure: (check) => [
    check.state,
    check.memory_pressure != null && `memory pressure ${count(check.memory_pressure)} %`,
    check.available_mb != null && `${count(check.available_mb)} MB free`,
    check.temperature_c != null && `${Math.round(check.temperature_c)} °C`,
  ],
  model: (check) => [
    check.number ? plural(check.number, "worker with a model", "workers with a model") : "not used",
    check.number > 0 && `${count(check.ready)} ready`,
    check.number > 0 && `${count(check.busy)} of ${plural(check.slots, "slot")} busy`,
  ],
  limits: (check) => [check.name, `${check.running == null ? "?" : count(check.running)} of ${plural(check.places, "slot")} used`],
  waiting: (check) => [check.task, `${count(check.number)} waiting for a slot`, check.oldest_age_s != null && `oldest ${duration(1000 * check.oldest_age_s)}`],
  clock: (check) => [check.skew_ms != null && `Redis is ${duration(Math.abs(check.skew_ms))} ${check.skew_ms < 0 ? "behind" : "ahead"}`],
  audit: (check) => [
    check.last_ts != null && (check.last_ts ? `last run ${ago(check.last_ts)}` : "not run yet"),
    check.violations != null && plural(check.violations, "violation"),
    check.lost_total != null && plural(check.lost_total, "lost job"),
  ],
};
const NAMES = { audit: "integrity check", pressure: "memory and temperature" };
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
    const found = (level) => results.filter(([, check]) => check.status === level).length;
    const summary = [found("fail") && `${count(found("fail"))} failed`, found("warn") && plural(found("warn"), "warning")].filter(Boolean).join(", ");
    replace(checksCard, h("div", { class: "card-head" }, h("h2", null, summary || (results.length ? "All checks pass" : "Status unknown")),
      status.releaseId && h("small", null, `Sluice ${status.releaseId}, up ${duration(status.uptime_s * 1000)}`)), results.length ? results.map(checkRow) : h("p", null, status.output ?? status.detail));
  }

  async function loadLastAudit() {
    const { last, totals } = await get("/v1/audit");
    showAudit(last.violations, last.violations_total, last.ts ? [`${plural(last.jobs_checked, "job")} checked in ${duration(last.duration_ms)}, `, timeAgo(last.ts), `. ${plural(totals.violations, "violation")} in all checks so far.`] : "No integrity check has run yet.");
  }

  function showAudit(violations, total, ...summary) {
    replace(auditCard, h("div", { class: "card-head" }, h("h2", null, "Integrity check of all jobs"), session.can("admin") && actionButton("Check now", (button) => runAction(button, runAudit), { class: "small" })),
      h("p", null, summary), total > 0 && h("div", { class: "box error" }, plural(total, "violation")),
      violations.length > 0 && h("ul", null, violations.map((violation) => h("li", null, h("a", { href: url`/ui/jobs/${violation.job_id}` }, violation.job_id), " ", h("code", null, violation.rule), ` ${violation.detail}`))));
  }

  async function runAudit() {
    const violations = [];
    try {
      for await (const line of readJsonLines((await send("POST", "/v1/audit")).body)) {
        if (line.type === "failed") throw new Error(line.detail);
        if (line.type === "violation") violations.push(line);
        showAudit(violations, violations.length, `${plural(line.jobs_checked ?? 0, "job")} checked… `, h("progress", { "aria-label": "Integrity check" }));
      }
    } finally {
      await loadLastAudit();
    }
  }

  await loadChecks();
  auditCard.hidden = !session.canRead("all");
  if (!auditCard.hidden) await loadLastAudit().catch((error) => replace(auditCard, errorBox(error)));
  return {
    title: "Health",
    node: h("div", { class: "stack" }, pageHead("Health", overall), checksCard, auditCard,
      h("p", { class: "dim" }, "On the host, ", h("code", null, "sudo sluice doctor"), " also checks settings, units, disks and the machine. ", copyButton("sudo sluice doctor"))),
    destroy: poll(loadChecks),
  };
}

function checkRow([name, check]) {
  const { status, output } = check;
  const [, command, explanation, page] = (output && FIXES[name]?.find(([pattern]) => pattern.test(output))) || [];
  const facts = FACTS[name]?.(check).filter(Boolean) ?? [];
  return h("div", { class: "check-row" }, badge(status),
    h("div", null, h("strong", null, NAMES[name] ?? humanize(name)), " ", h("span", { class: "dim small" }, facts.join(" · ")),
      output && h("p", null, output),
      command && h("p", { class: "small" }, "Fix: ", h("code", null, command), " ", copyButton(command), ` ${explanation} `, page && h("a", { href: page }, "Open"))));
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
