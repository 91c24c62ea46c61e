"""The field on one Redis: `make bench-peers`."""
