"""HTTP in, events out."""
