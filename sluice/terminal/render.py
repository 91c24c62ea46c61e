"""Colours, sparklines, and tables that are cut to the width of the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from sluice.terminal.text import display_width, pad, printable, truncate

GREEN, RED, YELLOW, CYAN, DIM, BOLD = "32", "31", "33", "36", "2", "1"
_STATUS_COLORS = {
    "done": GREEN, "completed": GREEN, "ready": GREEN, "pass": GREEN, "approved": GREEN,
    "error": RED, "failed": RED, "fail": RED, "rejected": RED,
    "canceled": YELLOW, "cancelled": YELLOW, "warn": YELLOW, "paused": YELLOW,
    "waiting_input": YELLOW,
    "running": CYAN, "processing": CYAN,
    "queued": DIM,
}  # fmt: skip


def supports_color(stream: TextIO) -> bool:
    """False for NO_COLOR (https://no-color.org), TERM=dumb and streams that are not terminals."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


class Colors:
    """Adds colours to text, if enabled."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __call__(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self.enabled and color and text else text

    def status(self, text: str) -> str:
        return self(text, _STATUS_COLORS.get(text.strip(), ""))


# -- sparklines --------------------------------------------------------------------------------

_SPARK_LEVELS = "▁▂▃▄▅▆▇█"
_NO_VALUE = " "


def sparkline(values: Sequence[float | None], columns: int) -> str:
    """A curve of at most `columns` characters, oldest value first; None is drawn as a gap."""
    points = _downsample(values, columns)
    top = max((value for value in points if value is not None), default=0)
    return "".join(_NO_VALUE if value is None else _spark_level(value, top) for value in points)


def _spark_level(value: float, top: float) -> str:
    if top <= 0:
        return _SPARK_LEVELS[0]
    highest = len(_SPARK_LEVELS) - 1
    return _SPARK_LEVELS[max(0, min(highest, round(value / top * highest)))]


def _downsample(values: Sequence[float | None], columns: int) -> list[float | None]:
    """One value per column: the maximum of the values it covers, so that peaks stay visible."""
    if columns < 1:
        return []
    if len(values) <= columns:
        return list(values)
    points: list[float | None] = []
    for column in range(columns):
        first, last = column * len(values) // columns, (column + 1) * len(values) // columns
        known = [value for value in values[first:last] if value is not None]
        points.append(max(known) if known else None)
    return points


# -- tables ------------------------------------------------------------------------------------

GAP = 2
#: Columns are not narrowed below this width.
MIN_WIDTH = 8


class Column(NamedTuple):
    """A column of a table: its heading, and the function that returns the value of a row."""

    name: str
    cell: Callable[[Any], object]
    right: bool = False
    #: Colour the values as statuses.
    status: bool = False


def table_lines(
    columns: Sequence[Column], rows: Iterable[Any], colors: Colors, max_width: int | None
) -> Iterator[str]:
    """The lines of a table, heading first. `max_width` None means no limit."""
    cells = [[printable(_cell_text(column.cell(row))) for column in columns] for row in rows]
    heading = [column.name for column in columns]
    widths = [max(map(display_width, texts)) for texts in zip(*cells, heading)]
    if max_width is not None:
        _narrow(widths, max_width)
    yield colors(_line(columns, heading, widths, Colors(False)), BOLD)
    for row in cells:
        yield _line(columns, row, widths, colors)


def _cell_text(value: object) -> object:
    return "-" if value is None or value == "" else value


def _narrow(widths: list[int], max_width: int) -> None:
    """Shrink the widest column (the last of equal ones) until the table fits."""
    excess = sum(widths) + GAP * (len(widths) - 1) - max_width
    while excess > 0:
        widest = max(range(len(widths)), key=lambda index: (widths[index], index))
        if widths[widest] <= MIN_WIDTH:
            return
        widths[widest] -= 1
        excess -= 1


def _line(columns: Sequence[Column], row: Sequence[str], widths: list[int], colors: Colors) -> str:
    parts = []
    for index, (column, text, width) in enumerate(zip(columns, row, widths)):
        text = truncate(text, width)
        is_last = index == len(columns) - 1
        text = text if is_last and not column.right else pad(text, width, right=column.right)
        parts.append(colors.status(text) if column.status else text)
    return (" " * GAP).join(parts).rstrip()
