"""The workflow `memory_first_v2`: reads sources, finds terms in them, proposes what to remember."""
