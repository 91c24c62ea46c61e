"""A pool of child processes for CPU-bound work."""
