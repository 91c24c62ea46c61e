"""One sample: how a second, ten of them or five minutes went. Samples add up to longer ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.stats import (
    COUNT_FIELDS,
    FIVE_MINUTES,
    HISTOGRAM_FIELDS,
    ONE_SECOND,
    TEN_SECONDS,
    TIME_COLUMN,
    TOTAL_FIELDS,
    Resolution,
    StatsColumn,
    StatsField,
)
from common.contracts.workers import SECONDS_BOUNDS

#: Number of the bucket without an upper bound.
LAST_BUCKET: Final = len(SECONDS_BOUNDS)

#: Counts by number of the bucket; those that are 0 are left out.
Counts = Mapping[int, int]


def encode(counts: Counts) -> str:
    return ",".join(f"{bucket}:{count}" for bucket, count in sorted(counts.items()) if count)


def decode(raw: str) -> dict[int, int]:
    """The same back; what a foreign hand wrote otherwise counts for nothing."""
    found: dict[int, int] = {}
    for part in raw.split(",") if raw else ():
        bucket, _, count = part.partition(":")
        if (
            bucket.isdecimal()
            and count.isdecimal()
            and len(part) < 32
            and int(bucket) <= LAST_BUCKET
        ):
            found[int(bucket)] = int(count)
    return found


def merge_counts(many: Iterable[Counts]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for counts in many:
        total.update(counts)
    return dict(total)


def percentile_ms(counts: Counts, share: float) -> float | None:
    """The value below which a share of all lies, in milliseconds; None where there is none.

    Within its bucket it is taken to lie where an even spread would put it; beyond the last bound
    nothing is known but that bound.
    """
    total = sum(counts.values())
    if not total:
        return None
    wanted, below = share * total, 0
    for bucket in sorted(counts):
        inside = counts[bucket]
        if below + inside >= wanted:
            if bucket >= LAST_BUCKET:
                break
            low = SECONDS_BOUNDS[bucket - 1] if bucket else 0.0
            high = SECONDS_BOUNDS[bucket]
            return round((low + (high - low) * (wanted - below) / inside) * 1000, 3)
        below += inside
    return SECONDS_BOUNDS[-1] * 1000


Number = int | float

_FIELDS: Final = tuple(StatsField)
_NAMES: Final = {each.value.encode(): each for each in _FIELDS}
#: How it stood, and so a thing of which the worst is kept.
_GAUGES: Final = tuple(
    each
    for each in _FIELDS
    if each not in COUNT_FIELDS and each not in TOTAL_FIELDS and each not in HISTOGRAM_FIELDS
)
#: Of most things the worst is that there is much of it.
_LEAST: Final = frozenset({StatsField.AVAILABLE_BYTES})


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a time; what is not known is not in it."""

    #: When its time begins, Unix milliseconds.
    ts: int
    values: Mapping[StatsField, Number] = field(default_factory=dict)
    spreads: Mapping[StatsField, Counts] = field(default_factory=dict)

    def encode(self) -> list[str]:
        """As the fields and values of a stream entry."""
        flat: list[str] = []
        for each in _FIELDS:
            flat.append(each.value)
            if each in HISTOGRAM_FIELDS:
                flat.append(encode(self.spreads.get(each, {})))
            else:
                flat.append(_text(self.values.get(each)))
        return flat

    @classmethod
    def decode(cls, entry_id: bytes, fields: Mapping[bytes, bytes]) -> Sample:
        """From a stream entry; odd fields of a foreign writer are left out."""
        values: dict[StatsField, Number] = {}
        spreads: dict[StatsField, Counts] = {}
        for name, raw in fields.items():
            known = _NAMES.get(name)
            if known is None or not raw:
                continue
            if known in HISTOGRAM_FIELDS:
                spreads[known] = decode(codec.decode_text(raw))
            elif (number := _number(raw)) is not None:
                values[known] = number
        position = codec.parse_stream_id(codec.decode_text(entry_id)) or (0, 0)
        return cls(position[0], values, spreads)


def merge_samples(ts: int, samples: Sequence[Sample]) -> Sample:
    """Consecutive samples as one that begins at `ts`.

    What was counted adds up; of how it stood the worst is kept: the most of everything, and of free
    memory the least.
    """
    values: dict[StatsField, Number] = {}
    for each in _FIELDS:
        found = [sample.values[each] for sample in samples if each in sample.values]
        if not found:
            continue
        if each in COUNT_FIELDS:
            values[each] = sum(found)
        elif each in TOTAL_FIELDS:
            values[each] = found[-1]
        elif each in _GAUGES:
            values[each] = min(found) if each in _LEAST else max(found)
    spreads = {
        each: merge_counts(sample.spreads.get(each, {}) for sample in samples)
        for each in HISTOGRAM_FIELDS
    }
    return Sample(ts, values, spreads)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _number(raw: bytes) -> Number | None:
    try:
        return int(raw)
    except ValueError:
        pass
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


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
        return {TIME_COLUMN: self.ts, **dict(zip(COLUMNS, self.values))}


def window_of(resolution: Resolution) -> int:
    """How many samples a point looks at, itself included."""
    return WINDOW if resolution is ONE_SECOND else 1


def make_point(samples: Sequence[Sample], resolution: Resolution) -> Point:
    """The last of some consecutive samples; the others are those just before it."""
    last = samples[-1]
    oldest = last.ts - window_of(resolution) * resolution.step_ms
    near = [each for each in samples if each.ts > oldest]
    lasted_s = len(near) * resolution.step_ms / 1000
    values: list[Number | None] = [last.values.get(name) for name in _PLAIN]
    for name in _TOKENS:
        known = [each.values[name] for each in near if name in each.values]
        values.append(round(sum(known) / lasted_s, 3) if known else None)
    for name in HISTOGRAM_FIELDS:
        counts = merge_counts(each.spreads.get(name, {}) for each in near)
        values += [percentile_ms(counts, share) for share in _SHARES]
    return Point(last.ts, tuple(values))


def totals(sample: Sample | None) -> dict[str, Number | None]:
    """The counters of a sample, under the names of what they count."""
    suffix = len("_total")
    return {
        field.value[:-suffix]: None if sample is None else sample.values.get(field)
        for field in TOTAL_FIELDS
    }


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
    Range.TEN_MINUTES: Span(ONE_SECOND, 10 * _MINUTE_MS),
    Range.HOUR: Span(TEN_SECONDS, _HOUR_MS),
    Range.SIX_HOURS: Span(TEN_SECONDS, 6 * _HOUR_MS),
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
    found: dict[str, Column] = {TIME_COLUMN: times}
    turned = zip(*rows) if rows else ((),) * len(COLUMNS)
    for name, values in zip(COLUMNS, turned):
        if name in wanted:
            found[name] = list(values)
    return found
