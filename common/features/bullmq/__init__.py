"""BullMQ queues: jobs, scripts and the package they come from."""
