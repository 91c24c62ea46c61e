"""Names of BullMQ's queues and jobs, as settings write them."""

from __future__ import annotations

import re

_QUEUE = re.compile(r"\A[^:\s,]{1,128}\Z")


def queues_in(value: str) -> list[str]:
    """The queues that a setting names, as they are called; braces belong to the name."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if not _QUEUE.match(name):
            raise ValueError(f"{name!r} is no name of a queue: no colons, spaces or commas")
    return names


def names_in(value: str) -> dict[str, str]:
    """Names of jobs to names of handlers."""
    found: dict[str, str] = {}
    for part in (part.strip() for part in value.split(",") if part.strip()):
        name, equals, handler = (piece.strip() for piece in part.partition("="))
        if not (name and equals and handler):
            raise ValueError(f"{part!r} is not of the form name=handler")
        found[name] = handler
    return found
