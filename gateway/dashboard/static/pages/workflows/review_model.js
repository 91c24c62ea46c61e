// State of a review. Decisions are sent one request at a time, in the order they were made, each
// for the version that was shown.

import { get, patch, post, url } from "../../lib/api.js";

const PAGE_SIZE = 500;
const DEBOUNCE_MS = 250;
const STATUS_AFTER = { approve: "approved", reject: "rejected", reset: "proposed" };
export const CONFLICT = "version_conflict";

/** Whether the item can be decided on. */
export const isOpen = (item) => Object.values(STATUS_AFTER).includes(item?.status);

export class Review {
  /** `onChange(ids, flash)`: these items have changed, null: all; `onMessage(text, bad)`: show a message. */
  constructor(jobId, step, onChange, onMessage) {
    Object.assign(this, { step, onChange, onMessage });
    this.path = url`/api/workflow/jobs/${jobId}`;
    this.items = [];
    this.indexById = new Map(); // id to its index in items
    this.notices = new Map(); // id to why the last decision on it was refused
    this.undoTokens = []; // of the operations made on this page, the last one at the end
    this.ownTokens = new Set(); // of all operations made on this page
    this.queue = Promise.resolve();
    this.events = [];
  }

  find = (id) => this.items[this.indexById.get(id)];

  readPage = async (query) => (await get(`${this.path}/results`, { step: this.step, limit: PAGE_SIZE, ...query })).result;

  async load() {
    const items = [];
    let cursor;
    do {
      const page = await this.readPage({ cursor });
      items.push(...page.items);
      cursor = page.pagination.next_cursor;
    } while (cursor);
    this.items = items;
    this.indexById = new Map(items.map((item, index) => [item.id, index]));
    this.onChange(null);
  }

  /** Read items again: in one request if they are close together. */
  async refresh(ids) {
    const indexes = ids.map((id) => this.indexById.get(id) ?? -1);
    const offset = Math.min(...indexes);
    const limit = Math.max(...indexes) - offset + 1;
    if (offset < 0 || limit > PAGE_SIZE) return this.load();
    const { items } = await this.readPage({ offset, limit });
    return items[0]?.id === this.items[offset].id ? this.update(items) : this.load();
  }

  update(items) {
    const existing = items.filter((item) => this.indexById.has(item.id));
    for (const item of existing) this.items[this.indexById.get(item.id)] = item;
    this.onChange(existing.map((item) => item.id));
  }

  count = (status) => this.items.filter((item) => item.status === status).length;

  /** Decide on items. Shown at once, and corrected by the response. */
  async decide(action, ids) {
    const status = STATUS_AFTER[action];
    const decidable = ids.filter((id) => isOpen(this.find(id)) && this.find(id).status !== status);
    if (!decidable.length) return;
    for (const id of decidable) this.notices.delete(id);
    this.update(decidable.map((id) => ({ ...this.find(id), status, sending: true })));
    await this.enqueue(() => this.sendDecision(action, decidable));
  }

  /** Run after all operations queued before. */
  enqueue(operation) {
    const done = this.queue.then(operation);
    this.queue = done.catch(() => {});
    return done;
  }

  async sendDecision(action, requested) {
    // Items refused meanwhile are shown with another status now.
    const ids = requested.filter((id) => !this.notices.has(id));
    if (!ids.length) return;
    const versions = Object.fromEntries(ids.map((id) => [id, this.find(id).version]));
    let response;
    try {
      response = await post(`${this.path}/proposals/bulk`, { action, proposal_ids: ids, versions });
    } catch (error) {
      response = error.problem;
      // A conflict response has the current items; after any other error everything is read again.
      if (error.status !== 409 || !response?.items) {
        await this.load().catch(() => {});
        return this.onMessage(error.detail, true);
      }
    }
    this.applyResponse(response, ids, STATUS_AFTER[action]);
    if (response.items.length < ids.length) await this.refresh(ids).catch(() => {});
  }

  applyResponse({ items, errors, undo_token: token, completed, started }, ids, status) {
    for (const { code, item_id: id, message } of errors) {
      this.notices.set(id, code === CONFLICT ? "Changed by another user." : message);
    }
    if (token) this.addUndo(token);
    this.update(items);
    this.onChange(ids);
    if (errors.length) this.onMessage(`${errors.length} not ${status}: changed by another user.`, true);
    else if (completed) this.onMessage(`The review is complete${started ? `; ${started.step} has started` : ""}.`);
    else this.onMessage(`${itemsText(ids)} ${status}.`);
  }

  addUndo(token) {
    this.ownTokens.add(token);
    this.undoTokens.push(token);
  }

  /** Edit an item at a version. Throws the error of the gateway, with the item up to date. */
  edit = (id, change) => this.enqueue(async () => {
    try {
      const response = await patch(this.path + url`/proposals/${id}/ontology`, change);
      this.notices.delete(id);
      this.addUndo(response.undo_token);
      this.update([response.item]);
    } catch (error) {
      if (error.status === 409) await this.refresh([id]);
      throw error;
    }
  });

  /** Undo the last operation made here, or the one of a token; returns the ids. */
  undo = (requested) => this.enqueue(async () => {
    const token = requested ?? this.undoTokens.at(-1);
    if (!token) return this.onMessage("There is nothing of yours to undo.");
    this.undoTokens = this.undoTokens.filter((entry) => entry !== token);
    this.ownTokens.add(token);
    try {
      const response = await post(`${this.path}/undo`, { undo_token: token, wait_s: 10 });
      this.update(response.items);
      this.onMessage(response.undone.length ? `${itemsText(response.undone)} undone.` : "A worker is undoing it.");
      return response.undone;
    } catch (error) {
      return this.onMessage(`Not undone: ${error.detail}`, true);
    }
  });

  /** An event reports changed items; changes made elsewhere are read again. */
  onEvent(event) {
    this.events.push(event);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.handleEvents().catch(() => {}), DEBOUNCE_MS);
  }

  async handleEvents() {
    await this.queue;
    const others = this.events.splice(0).filter((event) => !this.ownTokens.has(event.undo_token));
    if (!others.length) return;
    const listed = others.every((event) => Array.isArray(event.items)); // only events about few items list them
    const ids = others.flatMap((event) => event.items ?? []);
    await (listed ? this.refresh(ids) : this.load());
    if (listed) this.onChange(ids, true);
    this.onMessage(`${listed ? itemsText(ids) : "Many"} changed by ${others.at(-1).who ?? "another user"}.`);
  }
}

const itemsText = (ids) => (ids.length === 1 ? ids[0] : `${ids.length} items`);
