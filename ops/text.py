"""Text that the commands print: safe for a terminal, with units and counts as people read them."""

from __future__ import annotations

import os
import sys


def printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def format_bytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MB"


def format_duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.0f} days"


def discard_stdout() -> None:
    """After a broken pipe: keep the interpreter from flushing stdout again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
