"""Vector indexes, in memory and in Redis."""
