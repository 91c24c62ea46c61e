"""One package per feature of the worker."""
