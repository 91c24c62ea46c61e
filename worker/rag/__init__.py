"""Documents: stored, found again, quoted."""
