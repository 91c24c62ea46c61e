"""Tools that jobs and models call."""
