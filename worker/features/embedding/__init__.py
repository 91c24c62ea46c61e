"""Embeddings, from a model server or local."""
