"""Reads the processes' logs for what no fault excuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: Words with which Sluice, asyncio or Redis say that something happened nobody had thought of.
_ALARMING = (
    "unexpected",
    "never retrieved",
    "was never awaited",
    "Task was destroyed",
    "unhandled",
    "Bad file format",
)
_MOST_SHOWN = 300


def complaints(directory: Path) -> Iterator[str]:
    """Every alarming line of every log, once each."""
    for path in sorted(directory.glob("*.log")):
        seen: set[str] = set()
        for line in path.read_text(errors="replace").splitlines():
            if any(word in line for word in _ALARMING):
                said = line.partition(" ")[2][-_MOST_SHOWN:]
                if said not in seen:
                    seen.add(said)
                    yield f"{path.name}: {line[:_MOST_SHOWN]}"
