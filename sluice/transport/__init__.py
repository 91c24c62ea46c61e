"""HTTP transport: requests, retries and server-sent events."""
