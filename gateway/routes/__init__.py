"""One family of routes a file."""
