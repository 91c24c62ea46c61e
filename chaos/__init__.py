"""Runs Sluice among faults drawn from a seed, then asks Redis whether every promise was kept."""
