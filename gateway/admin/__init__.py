"""Routes for operators: dead letters, queues, the audit log, the integrity check."""
