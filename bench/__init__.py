"""Benchmarks: Sluice, naive programs and the limits of Redis and FastAPI, measured side by side."""
