"""Retrieval quality: questions about this project's documentation."""
