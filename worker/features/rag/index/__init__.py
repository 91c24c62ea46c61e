"""The search index of a namespace."""
