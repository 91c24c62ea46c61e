"""Heartbeats, counters, clean-up, the integrity check and shutdown."""
