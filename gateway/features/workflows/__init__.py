"""`/api/workflow`: workflow jobs, reviews and webhooks."""
