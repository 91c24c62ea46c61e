// What is reviewed, and decisions on their way: one request at a time, in the order of the keys
// pressed, each for the version that was on the screen.

import { get, patch, post, url } from "../api.js";

const PAGE = 500;
const GATHER_MS = 250;
const BECOMES = { approve: "approved", reject: "rejected", reset: "proposed" };
export const CONFLICT = "version_conflict";

/** Whether it can be decided on. */
export const isOpen = (item) => Object.values(BECOMES).includes(item?.status);

export class Review {
  /** `changed(ids, flash)`: these items, null for all; `said(text, bad)`: something to tell. */
  constructor(jobId, step, changed, said) {
    Object.assign(this, { step, changed, said });
    this.path = url`/api/workflow/jobs/${jobId}`;
    this.items = [];
    this.at = new Map(); // id to its place in items
    this.notices = new Map(); // id to why the last decision on it did not count
    this.undos = []; // tokens of what was done here
    this.ours = new Set();
    this.sending = Promise.resolve();
    this.heardOf = [];
  }

  find = (id) => this.items[this.at.get(id)];

  read = async (query) => (await get(`${this.path}/results`, { step: this.step, limit: PAGE, ...query })).result;

  async load() {
    const items = [];
    let cursor;
    do {
      const page = await this.read({ cursor });
      items.push(...page.items);
      cursor = page.pagination.next_cursor;
    } while (cursor);
    this.items = items;
    this.at = new Map(items.map((item, place) => [item.id, place]));
    this.changed(null);
  }

  /** Read items again: in one request where they lie close together. */
  async refresh(ids) {
    const places = ids.map((id) => this.at.get(id) ?? -1);
    const offset = Math.min(...places);
    const limit = Math.max(...places) - offset + 1;
    if (offset < 0 || limit > PAGE) return this.load();
    const { items } = await this.read({ offset, limit });
    return items[0]?.id === this.items[offset].id ? this.put(items) : this.load();
  }

  put(items) {
    const known = items.filter((item) => this.at.has(item.id));
    for (const item of known) this.items[this.at.get(item.id)] = item;
    this.changed(known.map((item) => item.id));
  }

  count = (status) => this.items.filter((item) => item.status === status).length;

  /** Decide on these. Shown at once; the answer says whether it is so. */
  async decide(action, ids) {
    const status = BECOMES[action];
    const chosen = ids.filter((id) => isOpen(this.find(id)) && this.find(id).status !== status);
    if (!chosen.length) return;
    for (const id of chosen) this.notices.delete(id);
    this.put(chosen.map((id) => ({ ...this.find(id), status, sending: true })));
    await this.inTurn(() => this.one(action, chosen));
  }

  /** After what was pressed before it. */
  inTurn(deed) {
    const done = this.sending.then(deed);
    this.sending = done.catch(() => {});
    return done;
  }

  async one(action, wanted) {
    // What was refused just before is on the screen as something else now.
    const ids = wanted.filter((id) => !this.notices.has(id));
    if (!ids.length) return;
    const versions = Object.fromEntries(ids.map((id) => [id, this.find(id).version]));
    let told;
    try {
      told = await post(`${this.path}/proposals/bulk`, { action, proposal_ids: ids, versions });
    } catch (error) {
      told = error.problem;
      // A conflict brings the items as they are; after anything else only the server knows.
      if (error.status !== 409 || !told?.items) {
        await this.load().catch(() => {});
        return this.said(error.detail, true);
      }
    }
    this.settled(told, ids, BECOMES[action]);
    if (told.items.length < ids.length) await this.refresh(ids).catch(() => {});
  }

  settled({ items, errors, undo_token: token, completed, started }, ids, became) {
    for (const { code, item_id: id, message } of errors) {
      this.notices.set(id, code === CONFLICT ? "Somebody was faster." : message);
    }
    if (token) this.remember(token);
    this.put(items);
    this.changed(ids);
    if (errors.length) this.said(`${errors.length} not ${became}: somebody was faster.`, true);
    else if (completed) this.said(`The review is complete${started ? `; ${started.step} has started` : ""}.`);
    else this.said(`${many(ids)} ${became}.`);
  }

  remember(token) {
    this.ours.add(token);
    this.undos.push(token);
  }

  /** Change one, as of a version. Raises what the gateway says; the item is up to date then. */
  edit = (id, change) => this.inTurn(async () => {
    try {
      const told = await patch(this.path + url`/proposals/${id}/ontology`, change);
      this.notices.delete(id);
      this.remember(told.undo_token);
      this.put([told.item]);
    } catch (error) {
      if (error.status === 409) await this.refresh([id]);
      throw error;
    }
  });

  /** Take back what was done here last, or what a token stands for; returns the ids. */
  undo = (wanted) => this.inTurn(async () => {
    const token = wanted ?? this.undos.at(-1);
    if (!token) return this.said("There is nothing of yours to take back.");
    this.undos = this.undos.filter((each) => each !== token);
    this.ours.add(token);
    try {
      const told = await post(`${this.path}/undo`, { undo_token: token, wait_s: 10 });
      this.put(told.items);
      this.said(told.undone.length ? `${many(told.undone)} taken back.` : "A worker takes it back.");
      return told.undone;
    } catch (error) {
      return this.said(`Not taken back: ${error.detail}`, true);
    }
  });

  /** An event says that items have changed; ours are known already, others are read anew. */
  heard(event) {
    this.heardOf.push(event);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.catchUp().catch(() => {}), GATHER_MS);
  }

  async catchUp() {
    await this.sending;
    const others = this.heardOf.splice(0).filter((event) => !this.ours.has(event.undo_token));
    if (!others.length) return;
    const named = others.every((event) => Array.isArray(event.items)); // of few items only
    const ids = others.flatMap((event) => event.items ?? []);
    await (named ? this.refresh(ids) : this.load());
    if (named) this.changed(ids, true);
    this.said(`${named ? many(ids) : "Many"} changed by ${others.at(-1).who ?? "somebody else"}.`);
  }
}

const many = (ids) => (ids.length === 1 ? ids[0] : `${ids.length} items`);
