"""One package per API beyond jobs."""
