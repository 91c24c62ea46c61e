// The jobs that fit some filters: read page by page, newest first, and kept up to date.

import { get } from "../api.js";

export const ENDED = new Set(["done", "error", "canceled"]);
export const AGES = { "15m": 900_000, "1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000 };
const PAGE = 200;
const MOST = 10_000; // as many as the gateway lists; a page that stays open does not grow beyond
const EMPTY_PAGES = 10; // in a row that are read by themselves while a search finds nothing

/** Filters as the API wants them. An age counts from now, whenever now is. */
export function wanted({ q, status, task, age, since, until, tenant }) {
  return { q, status, task, tenant, until: moment(until), since: age ? Date.now() - AGES[age] : moment(since) };
}

const moment = (text) => (text ? new Date(text).getTime() || "" : "");

export class JobList {
  #filters;
  #changed;
  #turn = 0;
  #complete = 0; // nothing is missing since then
  #known = new Map();
  jobs = [];
  /** Came while somebody was reading further down; `missed`: more than was told. */
  fresh = [];
  missed = false;
  next = null;
  loading = false;
  lookedAt = 0;
  error = null;

  constructor(filters, changed) {
    this.#filters = filters;
    this.#changed = changed;
  }

  /** Begin with these filters, from the newest on. */
  restart(filters) {
    this.#filters = filters;
    this.#clear();
    this.next = null;
    return this.more(true);
  }

  /** The next page, if there is one. */
  async more(first = false) {
    if (this.loading || (!first && !this.next)) return;
    const turn = this.#turn;
    this.loading = true;
    this.error = null;
    this.#changed();
    try {
      for (let page = 0; page < EMPTY_PAGES; page += 1) {
        const answer = await get("/v1/jobs", { ...wanted(this.#filters), limit: PAGE, cursor: this.next });
        if (turn !== this.#turn) return;
        if (first && !page) this.#complete = answer.jobs[0]?.created_ts ?? 0;
        this.next = answer.next;
        this.lookedAt += answer.looked_at;
        this.#append(answer.jobs);
        if (answer.jobs.length || !answer.next) break;
      }
    } catch (error) {
      if (turn === this.#turn) this.error = error;
    }
    if (turn !== this.#turn) return;
    this.loading = false;
    this.#changed();
  }

  /** After a break, or when more has changed than was told: what is newest now. */
  async refresh(hold) {
    const turn = this.#turn;
    const answer = await get("/v1/jobs", { ...wanted(this.#filters), limit: PAGE }).catch(() => null);
    if (!answer || turn !== this.#turn || (answer.next && !answer.jobs.length)) return;
    const there = new Set(answer.jobs.map((job) => job.job_id));
    const back = answer.next ? answer.jobs.at(-1).created_ts : 0;
    if (back > this.#complete && hold) {
      this.missed = true;
      return void this.#changed();
    }
    if (back > this.#complete) {
      // Between these and what is listed there may be others: begin anew.
      this.#clear();
      this.next = answer.next;
    }
    const newest = answer.jobs[0]?.created_ts ?? this.#complete;
    this.#complete = newest;
    const gone = (job) => job.created_ts >= back && job.created_ts <= newest && !there.has(job.key);
    for (const job of this.jobs.filter(gone)) this.#forget(job.key);
    this.take(answer.jobs, hold, true);
  }

  /** Jobs that changed. `hold`: new ones wait until they are asked for. */
  take(changed, hold, fits = false) {
    const arrived = [];
    for (const raw of changed) {
      const job = keyed(raw);
      const belongs = fits || this.#fits(job);
      const known = this.#known.get(job.key);
      if (known) {
        Object.assign(known, job);
        if (!belongs) this.#forget(job.key);
      } else if (belongs) {
        this.#known.set(job.key, job);
        arrived.push(job);
      }
    }
    this.fresh = this.#newest([...arrived, ...this.fresh.filter((job) => this.#known.has(job.key))]);
    if (!hold) this.reveal();
    else this.#changed();
  }

  /** Put in place what has waited. */
  reveal() {
    if (this.missed) return void this.restart(this.#filters);
    if (this.fresh.length) this.jobs = this.#newest([...this.fresh, ...this.jobs]);
    this.fresh = [];
    this.#changed();
  }

  /** All that fit now, page by page; more than `most` are left out. */
  async *all(more = {}, most = Infinity) {
    let cursor = null;
    let left = most;
    const filters = { ...wanted(this.#filters), ...more };
    do {
      const answer = await get("/v1/jobs", { ...filters, limit: PAGE, cursor });
      for (const job of answer.jobs) {
        if (left <= 0) return;
        left -= 1;
        yield job;
      }
      cursor = answer.next;
    } while (cursor);
  }

  #clear() {
    this.#turn += 1; // what is still being read belongs to what was
    this.loading = false;
    this.lookedAt = 0;
    this.jobs = [];
    this.fresh = [];
    this.missed = false;
    this.#known.clear();
  }

  #newest(jobs) {
    jobs.sort(newestFirst);
    for (const job of jobs.splice(MOST)) this.#known.delete(job.key);
    return jobs;
  }

  #append(jobs) {
    for (const raw of jobs) {
      const job = keyed(raw);
      if (this.#known.has(job.key)) continue;
      this.#known.set(job.key, job);
      this.jobs.push(job);
    }
  }

  #forget(key) {
    this.#known.delete(key);
    this.jobs = this.jobs.filter((job) => job.key !== key);
  }

  /** What the text of a job is only the gateway knows. */
  #fits(job) {
    const { q, status, task, tenant } = this.#filters;
    const { since, until } = wanted(this.#filters);
    if (q && !job.job_id.startsWith(q)) return this.#known.has(job.key) && statusFits(status, job);
    if (tenant && !this.#known.has(job.key)) return false;
    if (task.length && !task.includes(job.task)) return false;
    return statusFits(status, job) && !(since && job.created_ts < since) && !(until && job.created_ts > until);
  }
}

const statusFits = (status, job) => !status.length || status.includes(job.status);
const newestFirst = (a, b) => b.created_ts - a.created_ts;
const keyed = (job) => ({ ...job, key: job.job_id });
