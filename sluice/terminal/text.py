"""Untrusted text made safe for a terminal; durations, sizes and counts as people read them."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

_WIDE = ("W", "F")
_UNKNOWN = "-"


def printable(text: object) -> str:
    """One line without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def printable_lines(text: str) -> str:
    """Text without control characters other than line ends and tabs."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON without control characters: they can only be in strings, and are escaped there."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def display_width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in _WIDE else 1


def truncate(text: str, columns: int) -> str:
    """The text, at most so wide; an ellipsis stands for what was cut."""
    if columns < 1:
        return ""
    if display_width(text) <= columns:
        return text
    kept, left = [], columns - 1
    for letter in text:
        left -= _letter_width(letter)
        if left < 0:
            break
        kept.append(letter)
    return "".join(kept) + "…"


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text, at least so wide; `right` aligns it to the right."""
    gap = " " * max(0, columns - display_width(text))
    return gap + text if right else text + gap


def format_duration(ms: float | None) -> str:
    """Milliseconds in the unit that fits."""
    if ms is None:
        return _UNKNOWN
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 72 * 3600 else f"{seconds / 86_400:.0f} d"


def format_ago(ts_ms: float | None, now_ms: float | None = None) -> str:
    """How long ago a point in time is."""
    if not ts_ms:
        return _UNKNOWN
    since = (time.time() * 1000 if now_ms is None else now_ms) - ts_ms
    return "now" if since < 1000 else f"{format_duration(since)} ago"


def format_time(ts_ms: float | None) -> str:
    """A point in time in the local time zone, to the second."""
    if not ts_ms:
        return _UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts_ms / 1000))


def format_bytes(count: float | None) -> str:
    """Bytes in the unit that fits."""
    if count is None:
        return _UNKNOWN
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


def format_number(value: Any, digits: int = 0) -> str:
    """A number with thousands separators, or a dash for anything else."""
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else _UNKNOWN


def count_of(count: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 job`, `2 jobs`; `many` is for irregular plurals."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
