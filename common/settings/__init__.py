"""Settings from environment variables."""
