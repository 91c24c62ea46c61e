"""Rows for people: columns as wide as they must be, and no wider than the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from client.terminal.paint import BOLD, Paint
from client.terminal.text import cut, padded, printable, width

GAP = 2
#: A column that has to give way is not cut below this.
LEAST = 8


class Column(NamedTuple):
    """One column: its head, and what a row has in it."""

    name: str
    cell: Callable[[Any], object]
    right: bool = False
    #: Coloured by what it says.
    status: bool = False


def lines(
    columns: Sequence[Column], rows: Iterable[Any], paint: Paint, screen: int | None
) -> Iterator[str]:
    """The table, head first; `screen` columns wide at most, None for any width."""
    cells = [[printable(_text(column.cell(row))) for column in columns] for row in rows]
    heads = [column.name for column in columns]
    widths = [max(width(row[place]) for row in ([*cells, heads])) for place in range(len(columns))]
    if screen is not None:
        _fit(widths, screen)
    yield paint(_line(columns, heads, widths, Paint(False)), BOLD)
    for row in cells:
        yield _line(columns, row, widths, paint)


def _text(value: object) -> object:
    return "-" if value is None or value == "" else value


def _fit(widths: list[int], screen: int) -> None:
    """The widest gives way, the last one of equals first."""
    over = sum(widths) + GAP * (len(widths) - 1) - screen
    while over > 0:
        place = max(range(len(widths)), key=lambda place: (widths[place], place))
        if widths[place] <= LEAST:
            return
        widths[place] -= 1
        over -= 1


def _line(columns: Sequence[Column], row: Sequence[str], widths: list[int], paint: Paint) -> str:
    parts = []
    for place, (column, text, room) in enumerate(zip(columns, row, widths)):
        text = cut(text, room)
        last = place == len(columns) - 1
        text = text if last and not column.right else padded(text, room, right=column.right)
        parts.append(paint.status(text) if column.status else text)
    return (" " * GAP).join(parts).rstrip()
