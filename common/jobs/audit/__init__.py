"""The integrity check of all jobs."""
