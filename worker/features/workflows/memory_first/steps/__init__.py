"""The steps of `memory_first_v2`."""
