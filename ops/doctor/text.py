"""Numbers as people say them."""

from __future__ import annotations


def megabytes(count: int) -> str:
    """Bytes as MB or GB."""
    return f"{count / (1 << 30):.1f} GB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MB"


def seconds(count: float) -> str:
    """Seconds as the unit that fits."""
    if count < 1:
        return f"{count * 1000:.0f} ms"
    if count < 120:
        return f"{count:.0f} s"
    if count < 7200:
        return f"{count / 60:.0f} min"
    return f"{count / 3600:.0f} h" if count < 48 * 3600 else f"{count / 86_400:.0f} days"


def plural(number: int, what: str) -> str:
    """Such as `1 job`, `2 jobs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """One line, and nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
