"""Commands for the local machine."""
