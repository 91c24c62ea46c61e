"""Image processing."""
