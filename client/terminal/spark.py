"""Numbers over time in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_STEPS = "▁▂▃▄▅▆▇█"
_NOTHING = " "


def spark(values: Sequence[float | None], columns: int) -> str:
    """So many columns at most, from the oldest to the newest; what is not known is a gap."""
    points = _gathered(values, columns)
    known = [value for value in points if value is not None]
    top = max(known, default=0)
    return "".join(_NOTHING if value is None else _step(value, top) for value in points)


def _step(value: float, top: float) -> str:
    if top <= 0:
        return _STEPS[0]
    return _STEPS[max(0, min(len(_STEPS) - 1, round(value / top * (len(_STEPS) - 1))))]


def _gathered(values: Sequence[float | None], columns: int) -> list[float | None]:
    """The largest of neighbours where there are more of them than columns: peaks matter."""
    if columns < 1:
        return []
    if len(values) <= columns:
        return list(values)
    found: list[float | None] = []
    for place in range(columns):
        first, last = place * len(values) // columns, (place + 1) * len(values) // columns
        known = [value for value in values[first:last] if value is not None]
        found.append(max(known) if known else None)
    return found
