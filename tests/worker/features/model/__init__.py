"""The way to a model, against scripted servers."""
