"""The handlers that ship with Sluice, one task family a file."""
