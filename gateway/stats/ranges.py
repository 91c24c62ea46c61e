"""Which times can be asked for, and how the columns of one come about."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from common.contracts.stats import FIVE_MINUTES, SECONDS, TENS, TS, Resolution
from gateway.stats.points import COLUMNS, Point
from gateway.stats.sample import Number

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_NOTHING: Final = (None,) * len(COLUMNS)

Column = list[Number | None]


class Range(str, Enum):
    """How far back, up to now."""

    TEN_MINUTES = "10m"
    HOUR = "1h"
    SIX_HOURS = "6h"
    DAY = "24h"
    TWO_WEEKS = "14d"


class Span(NamedTuple):
    """The same, with the ring that has it."""

    resolution: Resolution
    length_ms: int


SPANS: Final = {
    Range.TEN_MINUTES: Span(SECONDS, 10 * _MINUTE_MS),
    Range.HOUR: Span(TENS, _HOUR_MS),
    Range.SIX_HOURS: Span(TENS, 6 * _HOUR_MS),
    Range.DAY: Span(FIVE_MINUTES, 24 * _HOUR_MS),
    Range.TWO_WEEKS: Span(FIVE_MINUTES, 14 * 24 * _HOUR_MS),
}


def columns(points: Sequence[Point], step_ms: int, wanted: Sequence[str]) -> dict[str, Column]:
    """Points as columns, one row a step; of one that is missing there is only the time."""
    times: Column = []
    rows: list[tuple[Number | None, ...]] = []
    for each in points:
        while times and each.ts - (last := int(times[-1] or 0)) > step_ms:
            times.append(last + step_ms)
            rows.append(_NOTHING)
        times.append(each.ts)
        rows.append(each.values)
    found: dict[str, Column] = {TS: times}
    turned = zip(*rows) if rows else ((),) * len(COLUMNS)
    for name, values in zip(COLUMNS, turned):
        if name in wanted:
            found[name] = list(values)
    return found
