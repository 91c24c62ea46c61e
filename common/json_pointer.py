"""Places in a JSON value."""

from __future__ import annotations

from collections.abc import Iterable


def pointer(path: Iterable[str | int]) -> str:
    """A place, as RFC 6901 writes it."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
