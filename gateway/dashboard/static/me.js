// Who looks at the page, and what the gateway lets them do from it.

export class Me {
  constructor(session) {
    this.session = session;
    this.name = session?.name ?? "";
    this.keyId = session?.key_id ?? null;
    this.tenant = session?.tenant ?? null;
    this.scopes = session?.scopes ?? [];
    /** A key must be shown first. */
    this.signInNeeded = Boolean(session?.sign_in_needed);
    /** There is a session to leave. */
    this.signedIn = Boolean(session?.signed_in);
    this.version = session?.version ?? "";
  }

  /** Whether a button for it is to be shown: 'submit', 'cancel', 'redrive', 'decide', 'admin'. */
  may(action) {
    return this.session?.may?.includes(action) ?? false;
  }

  /** Whether it can be read: 'jobs', 'numbers', 'all' (what is of no tenant), 'keys'. */
  reads(what) {
    return this.session?.reads?.includes(what) ?? false;
  }
}
