"""Consumes BullMQ queues: jobs of Node.js producers, run by the same executor."""
