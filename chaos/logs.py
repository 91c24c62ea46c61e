"""Searches the processes' logs for errors that no fault explains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: Texts with which Sluice, asyncio or Redis report an unexpected error.
_ALARMING = (
    "unexpected",
    "never retrieved",
    "was never awaited",
    "Task was destroyed",
    "unhandled",
    "Bad file format",
)
_MAX_LENGTH = 300


def complaints(directory: Path) -> Iterator[str]:
    """Yields every such line of every log, without repetitions."""
    for path in sorted(directory.glob("*.log")):
        seen: set[str] = set()
        for line in path.read_text(errors="replace").splitlines():
            if any(word in line for word in _ALARMING):
                text = line.partition(" ")[2][-_MAX_LENGTH:]
                if text not in seen:
                    seen.add(text)
                    yield f"{path.name}: {line[:_MAX_LENGTH]}"
