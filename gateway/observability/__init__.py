"""Status, metrics, history and workers."""
