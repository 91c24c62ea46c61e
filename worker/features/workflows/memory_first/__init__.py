"""The built-in workflow `memory_first_v2`."""
