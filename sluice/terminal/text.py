"""Makes untrusted text safe for a terminal; formats durations, sizes and counts."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

_WIDE = ("W", "F")
_UNKNOWN = "-"


def printable(text: object) -> str:
    """Text with every control character and line end replaced by `?`."""
    return "".join(char if char.isprintable() else "?" for char in str(text))


def printable_lines(text: str) -> str:
    """Text with control characters, except line ends and tabs, replaced by `?`."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON with control characters escaped; they occur only inside strings."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def display_width(text: str) -> int:
    """Number of terminal columns that the text occupies."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def truncate(text: str, columns: int) -> str:
    """Cut the text to at most `columns`, ending with an ellipsis if it was cut."""
    if columns < 1:
        return ""
    if display_width(text) <= columns:
        return text
    kept, left = [], columns - 1
    for char in text:
        left -= _char_width(char)
        if left < 0:
            break
        kept.append(char)
    return "".join(kept) + "…"


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Pad the text to at least `columns`; `right` aligns it to the right."""
    gap = " " * max(0, columns - display_width(text))
    return gap + text if right else text + gap


def format_duration(ms: float | None) -> str:
    """Milliseconds in a readable unit, such as `1.5 s` or `2 h`."""
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
    if not ts_ms:
        return _UNKNOWN
    since = (time.time() * 1000 if now_ms is None else now_ms) - ts_ms
    return "now" if since < 1000 else f"{format_duration(since)} ago"


def format_time(ts_ms: float | None) -> str:
    """A timestamp in local time, to the second."""
    if not ts_ms:
        return _UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts_ms / 1000))


def format_bytes(count: float | None) -> str:
    """Bytes in a readable unit, such as `2.0 KB`."""
    if count is None:
        return _UNKNOWN
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


def format_number(value: Any, digits: int = 0) -> str:
    """A number with thousands separators; a dash for any other value."""
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else _UNKNOWN


def count_of(count: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 job`, `2 jobs`; `many` is for irregular plurals."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
