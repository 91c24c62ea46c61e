"""What is shown of samples: one value a column, worked out once for everybody who asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from common.contracts.stats import (
    SECONDS,
    SPREADS,
    TOTALS,
    TS,
    Resolution,
    StatsColumn,
    StatsField,
)
from gateway.stats import spread
from gateway.stats.sample import Number, Sample

#: Workers tell of times and tokens every few seconds. A point of one second would have either all
#: of it or nothing, so those columns are of so many samples up to it.
WINDOW: Final = 10
_SHARES: Final = (0.5, 0.95, 0.99)
_TOKENS: Final = (StatsField.PROMPT_TOKENS, StatsField.COMPLETION_TOKENS)
#: Columns that are fields as they are.
_PLAIN: Final = tuple(
    StatsField(column.value)
    for column in StatsColumn
    if column.value in {field.value for field in StatsField}
)
#: In the order of a point's values.
COLUMNS: Final = tuple(column.value for column in StatsColumn)


class Point(NamedTuple):
    """A sample as it is shown; None for what nobody knows."""

    ts: int
    values: tuple[Number | None, ...]

    def view(self) -> dict[str, Number | None]:
        """By name."""
        return {TS: self.ts, **dict(zip(COLUMNS, self.values))}


def window_of(resolution: Resolution) -> int:
    """How many samples a point looks at, itself included."""
    return WINDOW if resolution is SECONDS else 1


def point(samples: Sequence[Sample], resolution: Resolution) -> Point:
    """The last of some consecutive samples; the others are those just before it."""
    last = samples[-1]
    oldest = last.ts - window_of(resolution) * resolution.step_ms
    near = [each for each in samples if each.ts > oldest]
    lasted_s = len(near) * resolution.step_ms / 1000
    values: list[Number | None] = [last.values.get(field) for field in _PLAIN]
    for field in _TOKENS:
        known = [each.values[field] for each in near if field in each.values]
        values.append(round(sum(known) / lasted_s, 3) if known else None)
    for field in SPREADS:
        counts = spread.merged(each.spreads.get(field, {}) for each in near)
        values += [spread.percentile_ms(counts, share) for share in _SHARES]
    return Point(last.ts, tuple(values))


def totals(sample: Sample | None) -> dict[str, Number | None]:
    """The counters of a sample, under the names of what they count."""
    suffix = len("_total")
    return {
        field.value[:-suffix]: None if sample is None else sample.values.get(field)
        for field in TOTALS
    }
