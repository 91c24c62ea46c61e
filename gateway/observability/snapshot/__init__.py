"""Snapshots of Redis, partitions and limits for metrics and status."""
