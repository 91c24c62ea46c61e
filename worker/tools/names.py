"""Names of tools, as others have to write them."""

from __future__ import annotations


def wire_name(name: str) -> str:
    """A tool's name among the functions of a model, where dots are not allowed."""
    return name.replace(".", "__")
