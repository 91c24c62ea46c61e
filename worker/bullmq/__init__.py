"""BullMQ's queues as a front door: jobs of Node producers, done by the same executor."""
