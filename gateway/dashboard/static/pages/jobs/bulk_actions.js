// Actions on all jobs that match the filters: export, cancel.

import { post, url } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { plural } from "../../lib/format.js";
import { confirmDialog, toast } from "../../components/ui.js";

const MAX_JOBS = 20_000;
const CONCURRENCY = 6;
const COLUMNS = ["job_id", "task", "status", "created_ts", "updated_ts", "ttl_s", "error_kind", "error_message"];

/** Save the matching jobs as a file; `format`: 'csv' or 'json'. */
export async function exportJobs(list, format, onProgress) {
  const jobs = [];
  for await (const job of list.all({}, MAX_JOBS)) {
    jobs.push(job);
    if (jobs.length % 200 === 0) onProgress(`${jobs.length} jobs…`);
  }
  const content = format === "csv" ? toCsv(jobs) : JSON.stringify(jobs, null, 1);
  const link = h("a", { href: URL.createObjectURL(new Blob([content])), download: `jobs.${format}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  toast(`${plural(jobs.length, "job")} exported.`, "good");
}

function toCsv(jobs) {
  const rows = jobs.map((job) => ({ ...job, error_kind: job.error?.kind, error_message: job.error?.message }));
  return [COLUMNS, ...rows.map((row) => COLUMNS.map((name) => row[name]))].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

/** Quote a cell; a leading apostrophe keeps spreadsheets from running it as a formula. */
function csvCell(value) {
  const text = String(value ?? "");
  return /^[=+\-@\t\r]|[",\r\n]/.test(text) ? `"${/^[=+\-@\t\r]/.test(text) ? "'" : ""}${text.replaceAll('"', '""')}"` : text;
}

/** Cancel the matching jobs that are not finished; the user confirms by typing their number. */
export async function cancelMatching(list, status, onProgress) {
  const unfinished = ["queued", "running"].filter((item) => !status.length || status.includes(item));
  const ids = [];
  if (unfinished.length) for await (const job of list.all({ status: unfinished }, MAX_JOBS)) ids.push(job.job_id);
  if (!ids.length) return void toast("No matching job is waiting or running.");
  const confirmed = await confirmDialog({
    title: `Cancel ${plural(ids.length, "job")}?`,
    text: "Cancels all jobs that match the filters now and are not finished. This cannot be undone.",
    typed: ids.length,
    yes: `Cancel ${plural(ids.length, "job")}`,
    no: "Keep running",
  });
  if (!confirmed) return undefined;
  let done = 0;
  let failed = 0;
  const total = ids.length;
  await Promise.all(
    Array.from({ length: CONCURRENCY }, async () => {
      for (let id = ids.shift(); id !== undefined; id = ids.shift()) {
        await post(url`/v1/jobs/${id}/cancel`).catch(() => (failed += 1));
        onProgress(`${(done += 1)} of ${total}…`);
      }
    }),
  );
  return void toast(failed ? `${total - failed} canceled, ${failed} failed.` : `${total} canceled.`, failed ? "bad" : "good");
}
