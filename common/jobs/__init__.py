"""The job store, the queue and their Lua scripts."""
