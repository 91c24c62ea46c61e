"""Runs Sluice under faults drawn from a seed, then checks in Redis that every guarantee held."""
