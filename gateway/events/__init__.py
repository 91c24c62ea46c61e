"""Live event streams over SSE and NDJSON."""
