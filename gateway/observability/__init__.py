"""Health checks, metrics, history and workers."""
