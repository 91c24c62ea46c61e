"""Webhooks: what a workflow's outbox holds is delivered, in order, until it has arrived."""
