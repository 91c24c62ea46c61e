"""Connections to Redis, topologies, script batching and partitions."""
