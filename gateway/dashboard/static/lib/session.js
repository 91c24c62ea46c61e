// The session of the user: identity, permissions, signing in and out.

import { del, get, post } from "./api.js";

const PATH = "/ui/session";
const HOME = "/ui";

export class Session {
  constructor(record) {
    this.record = record;
    this.name = record?.name ?? "";
    this.keyId = record?.key_id ?? null;
    this.tenant = record?.tenant ?? null;
    this.scopes = record?.scopes ?? [];
    /** The gateway requires an API key. */
    this.signInNeeded = Boolean(record?.sign_in_needed);
    /** Signed in with a key; there is a session to sign out of. */
    this.signedIn = Boolean(record?.signed_in);
    this.version = record?.version ?? "";
  }

  /** Whether an action is allowed: 'submit', 'cancel', 'redrive', 'decide', 'admin'. */
  can(action) {
    return this.record?.may?.includes(action) ?? false;
  }

  /** Whether data can be read: 'jobs', 'numbers', 'all' (data of all tenants), 'keys'. */
  canRead(data) {
    return this.record?.reads?.includes(data) ?? false;
  }
}

export const loadSession = async () => new Session(await get(PATH));

/** Sign in. Without `actions` the session is read-only. */
export const signIn = (key, actions) => post(PATH, { key, actions });

export const signOut = () => del(PATH);

/** The path to open after signing in: only a page of the dashboard, and not the sign-in page. */
export function returnPath(path) {
  const allowed = path && /^\/ui(\/(?!\/)|\?|$)/.test(path) && !path.startsWith("/ui/login");
  return allowed ? path : HOME;
}
