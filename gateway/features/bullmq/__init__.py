"""`/v1/bullmq`: jobs in BullMQ queues."""
