"""Server-sent events of jobs."""
