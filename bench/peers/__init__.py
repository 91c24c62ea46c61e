"""Compares Sluice with other job queues on one Redis: `make bench-peers`."""
