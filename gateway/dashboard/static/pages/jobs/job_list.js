// The jobs that match the filters: read page by page, newest first, and kept up to date.

import { get } from "../../lib/api.js";

export const ENDED = new Set(["done", "error", "canceled"]);
export const AGES = { "15m": 900_000, "1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000 };
const PAGE = 200;
const MAX_JOBS = 10_000; // as many as the gateway lists; bounds the memory of a page that stays open
const EMPTY_PAGES = 10; // in a row that are read automatically while a search finds nothing

/** Filters as query parameters of the API. An age is relative to the current time. */
export function toQuery({ q, status, task, age, since, until, tenant }) {
  return { q, status, task, tenant, until: parseTime(until), since: age ? Date.now() - AGES[age] : parseTime(since) };
}

const parseTime = (text) => (text ? new Date(text).getTime() || "" : "");

export class JobList {
  #filters;
  #onChange;
  #generation = 0;
  #completeSince = 0; // created_ts from which on no job is missing
  #byKey = new Map();
  jobs = [];
  /** New jobs, held back while the user reads further down; `missed`: there are more than these. */
  pending = [];
  missed = false;
  next = null;
  loading = false;
  scanned = 0;
  error = null;

  constructor(filters, onChange) {
    this.#filters = filters;
    this.#onChange = onChange;
  }

  /** Start over with these filters. */
  restart(filters) {
    this.#filters = filters;
    this.#clear();
    this.next = null;
    return this.loadMore(true);
  }

  /** Load the next page, if there is one. */
  async loadMore(first = false) {
    if (this.loading || (!first && !this.next)) return;
    const generation = this.#generation;
    this.loading = true;
    this.error = null;
    this.#onChange();
    try {
      for (let page = 0; page < EMPTY_PAGES; page += 1) {
        const response = await get("/v1/jobs", { ...toQuery(this.#filters), limit: PAGE, cursor: this.next });
        if (generation !== this.#generation) return;
        if (first && !page) this.#completeSince = response.jobs[0]?.created_ts ?? 0;
        this.next = response.next;
        this.scanned += response.looked_at;
        this.#append(response.jobs);
        if (response.jobs.length || !response.next) break;
      }
    } catch (error) {
      if (generation === this.#generation) this.error = error;
    }
    if (generation !== this.#generation) return;
    this.loading = false;
    this.#onChange();
  }

  /** Read the newest jobs again: after a reconnect, or if an event was incomplete. */
  async refresh(hold) {
    const generation = this.#generation;
    const response = await get("/v1/jobs", { ...toQuery(this.#filters), limit: PAGE }).catch(() => null);
    if (!response || generation !== this.#generation || (response.next && !response.jobs.length)) return;
    const listed = new Set(response.jobs.map((job) => job.job_id));
    const oldestTs = response.next ? response.jobs.at(-1).created_ts : 0;
    if (oldestTs > this.#completeSince && hold) {
      this.missed = true;
      return void this.#onChange();
    }
    if (oldestTs > this.#completeSince) {
      // There may be jobs between these and the listed ones: start over.
      this.#clear();
      this.next = response.next;
    }
    const newest = response.jobs[0]?.created_ts ?? this.#completeSince;
    this.#completeSince = newest;
    const isGone = (job) => job.created_ts >= oldestTs && job.created_ts <= newest && !listed.has(job.key);
    for (const job of this.jobs.filter(isGone)) this.#remove(job.key);
    this.apply(response.jobs, hold, true);
  }

  /** Apply changed jobs. `hold`: new ones are held back until `reveal`. */
  apply(changedJobs, hold, matches = false) {
    const added = [];
    for (const raw of changedJobs) {
      const job = withKey(raw);
      const matching = matches || this.#matches(job);
      const existing = this.#byKey.get(job.key);
      if (existing) {
        Object.assign(existing, job);
        if (!matching) this.#remove(job.key);
      } else if (matching) {
        this.#byKey.set(job.key, job);
        added.push(job);
      }
    }
    this.pending = this.#newest([...added, ...this.pending.filter((job) => this.#byKey.has(job.key))]);
    if (!hold) this.reveal();
    else this.#onChange();
  }

  /** Show the jobs that were held back. */
  reveal() {
    if (this.missed) return void this.restart(this.#filters);
    if (this.pending.length) this.jobs = this.#newest([...this.pending, ...this.jobs]);
    this.pending = [];
    this.#onChange();
  }

  /** All jobs that match now, at most `max`. */
  async *all(overrides = {}, max = Infinity) {
    let cursor = null;
    let remaining = max;
    const filters = { ...toQuery(this.#filters), ...overrides };
    do {
      const response = await get("/v1/jobs", { ...filters, limit: PAGE, cursor });
      for (const job of response.jobs) {
        if (remaining <= 0) return;
        remaining -= 1;
        yield job;
      }
      cursor = response.next;
    } while (cursor);
  }

  #clear() {
    this.#generation += 1; // responses still under way belong to the previous filters
    this.loading = false;
    this.scanned = 0;
    this.jobs = [];
    this.pending = [];
    this.missed = false;
    this.#byKey.clear();
  }

  #newest(jobs) {
    jobs.sort(newestFirst);
    for (const job of jobs.splice(MAX_JOBS)) this.#byKey.delete(job.key);
    return jobs;
  }

  #append(jobs) {
    for (const raw of jobs) {
      const job = withKey(raw);
      if (this.#byKey.has(job.key)) continue;
      this.#byKey.set(job.key, job);
      this.jobs.push(job);
    }
  }

  #remove(key) {
    this.#byKey.delete(key);
    this.jobs = this.jobs.filter((job) => job.key !== key);
  }

  /** Only the gateway can match the text of a job. */
  #matches(job) {
    const { q, status, task, tenant } = this.#filters;
    const { since, until } = toQuery(this.#filters);
    if (q && !job.job_id.startsWith(q)) return this.#byKey.has(job.key) && statusMatches(status, job);
    if (tenant && !this.#byKey.has(job.key)) return false;
    if (task.length && !task.includes(job.task)) return false;
    return statusMatches(status, job) && !(since && job.created_ts < since) && !(until && job.created_ts > until);
  }
}

const statusMatches = (status, job) => !status.length || status.includes(job.status);
const newestFirst = (a, b) => b.created_ts - a.created_ts;
const withKey = (job) => ({ ...job, key: job.job_id });
