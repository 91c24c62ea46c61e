"""The built-in handlers, one task family per file."""
