"""Text helpers for messages and log lines."""

from __future__ import annotations

from collections.abc import Mapping


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun (`1 job`, `2 jobs`); `many` is the plural if it is not `one` + "s"."""
    if count == 1:
        return f"1 {one}"
    return f"{count} {one + 's' if many is None else many}"


def escape(text: str) -> str:
    """The text on one line, with escapes for control characters, line breaks and the like.

    So text of a client cannot look like a line of its own, or control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def escape_lines(text: str) -> str:
    """The lines of a text, escaped. All but the first are indented: none looks like a log line."""
    return "\n    ".join(map(escape, text.splitlines()))


def shown_fields(fields: Mapping[str, str]) -> str:
    """Fields at the end of a line, ` name=value` each. A value that is not one word is quoted."""
    return "".join(
        f" {name}={value if _is_word(value) else repr(value)}" for name, value in fields.items()
    )


def _is_word(value: str) -> bool:
    return value.isprintable() and not any(sign in value for sign in " '\"")
