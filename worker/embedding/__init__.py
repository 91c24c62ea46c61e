"""Texts to vectors: by a model server, or offline."""
