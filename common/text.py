"""Text helpers for messages."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun (`1 job`, `2 jobs`); `many` is the plural if it is not `one` + "s"."""
    if count == 1:
        return f"1 {one}"
    return f"{count} {one + 's' if many is None else many}"
