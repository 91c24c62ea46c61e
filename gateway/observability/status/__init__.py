"""`/v1/status` and its checks."""
