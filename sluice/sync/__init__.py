# Generated from sluice/aio/__init__.py; edit that file.
"""The blocking client."""
