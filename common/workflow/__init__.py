"""Workflows: what they are made of, and the scripts that move them."""
