"""Queues of BullMQ, as far as whoever feeds and looks at them must know: its scripts, a job."""
