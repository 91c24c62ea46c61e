"""Colours, where somebody sees them and has not said no."""

from __future__ import annotations

import os
from typing import TextIO

GREEN, RED, YELLOW, CYAN, DIM, BOLD = "32", "31", "33", "36", "2", "1"
_STATUS = {
    "done": GREEN, "completed": GREEN, "ready": GREEN, "pass": GREEN, "approved": GREEN,
    "error": RED, "failed": RED, "fail": RED, "rejected": RED,
    "canceled": YELLOW, "cancelled": YELLOW, "warn": YELLOW, "paused": YELLOW,
    "waiting_input": YELLOW,
    "running": CYAN, "processing": CYAN,
    "queued": DIM,
}  # fmt: skip


def wanted(stream: TextIO) -> bool:
    """Whether a stream is to be coloured: https://no-color.org."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


class Paint:
    """Colours, or none."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, colour: str) -> str:
        """The text in a colour."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self.on and colour and text else text

    def status(self, text: str) -> str:
        """How something is, in the colour of that."""
        return self(text, _STATUS.get(text.strip(), ""))
