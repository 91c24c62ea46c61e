"""Term candidates and their similarity."""
