"""Text of strangers, made fit for a terminal; and numbers as people say them."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

_WIDE = ("W", "F")
_UNKNOWN = "-"


def printable(text: object) -> str:
    """One line, and nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def harmless(text: str) -> str:
    """The same, with line ends and tabs left in: for the words of a model, as they come."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON that says the same to a program and that a terminal can be shown: what is unprintable
    can only stand in strings, and is escaped there."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def width(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(_width(letter) for letter in text)


def _width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in _WIDE else 1


def cut(text: str, columns: int) -> str:
    """No wider than this; what is missing is told by an ellipsis."""
    if columns < 1:
        return ""
    if width(text) <= columns:
        return text
    taken, room = [], columns - 1
    for letter in text:
        room -= _width(letter)
        if room < 0:
            break
        taken.append(letter)
    return "".join(taken) + "…"


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """At least this wide."""
    gap = " " * max(0, columns - width(text))
    return gap + text if right else text + gap


def duration(ms: float | None) -> str:
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


def ago(ts_ms: float | None, now_ms: float | None = None) -> str:
    """How long since a point in time."""
    if not ts_ms:
        return _UNKNOWN
    since = (time.time() * 1000 if now_ms is None else now_ms) - ts_ms
    return "now" if since < 1000 else f"{duration(since)} ago"


def clock(ts_ms: float | None) -> str:
    """A point in time, in this place's time, to the second."""
    if not ts_ms:
        return _UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts_ms / 1000))


def size(count: float | None) -> str:
    """Bytes in the unit that fits."""
    if count is None:
        return _UNKNOWN
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


def number(value: Any, digits: int = 0) -> str:
    """A number, or a dash for none."""
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else _UNKNOWN


def plural(count: int, what: str) -> str:
    """Such as `1 job`, `2 jobs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
