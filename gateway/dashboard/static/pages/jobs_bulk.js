// What is done with all jobs that fit the filters: export, cancel.

import { post, url } from "../api.js";
import { h } from "../dom.js";
import { confirmDialog, toast } from "../ui.js";

const MOST = 20_000;
const AT_ONCE = 6;
const COLUMNS = ["job_id", "task", "status", "created_ts", "updated_ts", "ttl_s", "error_kind", "error_message"];

/** Save the list as a file. */
export async function exportJobs(list, form, say) {
  const jobs = [];
  for await (const job of list.all({}, MOST)) {
    jobs.push(job);
    if (jobs.length % 200 === 0) say(`${jobs.length} jobs…`);
  }
  const whole = form === "csv" ? csv(jobs) : JSON.stringify(jobs, null, 1);
  const link = h("a", { href: URL.createObjectURL(new Blob([whole])), download: `jobs.${form}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  toast(`${jobs.length} jobs saved.`, "good");
}

function csv(jobs) {
  const rows = jobs.map((job) => ({ ...job, error_kind: job.error?.kind, error_message: job.error?.message }));
  return [COLUMNS, ...rows.map((row) => COLUMNS.map((name) => row[name]))].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** No cell is a formula to a spreadsheet. */
function cell(value) {
  const text = String(value ?? "");
  return /^[=+\-@\t\r]|[",\r\n]/.test(text) ? `"${/^[=+\-@\t\r]/.test(text) ? "'" : ""}${text.replaceAll('"', '""')}"` : text;
}

/** Cancel what fits and has not ended, after its number was typed. */
export async function cancelMatching(list, status, say) {
  const open = ["queued", "running"].filter((one) => !status.length || status.includes(one));
  const ids = [];
  if (open.length) for await (const job of list.all({ status: open }, MOST)) ids.push(job.job_id);
  if (!ids.length) return void toast("No job that fits is waiting or running.");
  const sure = await confirmDialog({
    title: `Cancel ${ids.length} jobs?`,
    text: "All jobs that fit the filters now and have not ended. This cannot be taken back.",
    typed: ids.length,
    yes: "Cancel them",
  });
  if (!sure) return undefined;
  let done = 0;
  let failed = 0;
  const whole = ids.length;
  await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      for (let id = ids.shift(); id !== undefined; id = ids.shift()) {
        await post(url`/v1/jobs/${id}/cancel`).catch(() => (failed += 1));
        say(`${(done += 1)} of ${whole}…`);
      }
    }),
  );
  return void toast(failed ? `${whole - failed} canceled, ${failed} could not be.` : `${whole} canceled.`, failed ? "bad" : "good");
}
