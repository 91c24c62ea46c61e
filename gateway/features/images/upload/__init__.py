"""Uploads of image files."""
