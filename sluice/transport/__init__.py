"""HTTP transport: requests, retries, SSE."""
