"""Names only: keys, fields, statuses, event types. Every literal of a contract lives here."""
