"""Samples of one second, ten seconds or five minutes, and the points computed from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.stats import (
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
from sluice.common.contracts.workers import SECONDS_BOUNDS

#: Index of the bucket without an upper bound.
LAST_BUCKET: Final = len(SECONDS_BOUNDS)

#: Counts by bucket index; zeros are left out.
Counts = Mapping[int, int]


def encode(counts: Counts) -> str:
    return ",".join(f"{bucket}:{count}" for bucket, count in sorted(counts.items()) if count)


def decode(raw: str) -> dict[int, int]:
    """The inverse of `encode`; invalid parts are ignored."""
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
    """The percentile in milliseconds for a share from 0 to 1; None without values.

    Values are assumed to be spread evenly within a bucket. In the last bucket the result is the
    highest bound.
    """
    total = sum(counts.values())
    if not total:
        return None
    target, below = share * total, 0
    for bucket in sorted(counts):
        inside = counts[bucket]
        if below + inside >= target:
            if bucket >= LAST_BUCKET:
                break
            low = SECONDS_BOUNDS[bucket - 1] if bucket else 0.0
            high = SECONDS_BOUNDS[bucket]
            return round((low + (high - low) * (target - below) / inside) * 1000, 3)
        below += inside
    return SECONDS_BOUNDS[-1] * 1000


Number = int | float

_FIELDS: Final = tuple(StatsField)
_NAMES: Final = {each.value.encode(): each for each in _FIELDS}
#: Gauges: when samples are merged, the worst value is kept.
_GAUGES: Final = tuple(
    each
    for each in _FIELDS
    if each not in COUNT_FIELDS and each not in TOTAL_FIELDS and each not in HISTOGRAM_FIELDS
)
#: Gauges whose lowest value is the worst one; for all others it is the highest.
_LEAST: Final = frozenset({StatsField.AVAILABLE_BYTES})


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one interval; unknown values are left out."""

    #: Start of the interval in Unix milliseconds.
    ts: int
    values: Mapping[StatsField, Number] = field(default_factory=dict)
    spreads: Mapping[StatsField, Counts] = field(default_factory=dict)

    def encode(self) -> list[str]:
        """Field names and values of a stream entry, alternating."""
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
        """Parse a stream entry; unknown or invalid fields are ignored."""
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
    """Merge consecutive samples into one that begins at `ts`.

    Counts are added. Of gauges the worst value is kept: the lowest available memory, and the
    highest value of all others.
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


#: Number of samples that a one-second point covers for percentiles and tokens. Workers report these
#: only every few seconds, so that a single sample would have either all of them or none.
WINDOW: Final = 10
_SHARES: Final = (0.5, 0.95, 0.99)
_TOKENS: Final = (StatsField.PROMPT_TOKENS, StatsField.COMPLETION_TOKENS)
#: Columns that equal a field of the sample.
_PLAIN: Final = tuple(
    StatsField(column.value)
    for column in StatsColumn
    if column.value in {field.value for field in StatsField}
)
#: Column names, in the order of a point's values.
COLUMNS: Final = tuple(column.value for column in StatsColumn)


class Point(NamedTuple):
    """A row of the statistics; None for unknown values."""

    ts: int
    values: tuple[Number | None, ...]

    def view(self) -> dict[str, Number | None]:
        return {TIME_COLUMN: self.ts, **dict(zip(COLUMNS, self.values))}


def window_of(resolution: Resolution) -> int:
    """Number of samples that a point is computed from, including its own."""
    return WINDOW if resolution is ONE_SECOND else 1


def make_point(samples: Sequence[Sample], resolution: Resolution) -> Point:
    """The point of the last sample; the others are the samples before it."""
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
    """The total counters of a sample, by name without `_total`."""
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
    """Length of the range up to now."""

    TEN_MINUTES = "10m"
    HOUR = "1h"
    SIX_HOURS = "6h"
    DAY = "24h"
    TWO_WEEKS = "14d"


class Span(NamedTuple):
    """The resolution and length of a range."""

    resolution: Resolution
    length_ms: int


SPANS: Final = {
    Range.TEN_MINUTES: Span(ONE_SECOND, 10 * _MINUTE_MS),
    Range.HOUR: Span(TEN_SECONDS, _HOUR_MS),
    Range.SIX_HOURS: Span(TEN_SECONDS, 6 * _HOUR_MS),
    Range.DAY: Span(FIVE_MINUTES, 24 * _HOUR_MS),
    Range.TWO_WEEKS: Span(FIVE_MINUTES, 14 * 24 * _HOUR_MS),
}


def columns(points: Sequence[Point], step_ms: int, names: Sequence[str]) -> dict[str, Column]:
    """Points as columns, one row per step; a missing point has a time and null values."""
    times: Column = []
    rows: list[tuple[Number | None, ...]] = []
    for each in points:
        while times and each.ts - (last := int(times[-1] or 0)) > step_ms:
            times.append(last + step_ms)
            rows.append(_NOTHING)
        times.append(each.ts)
        rows.append(each.values)
    found: dict[str, Column] = {TIME_COLUMN: times}
    transposed = zip(*rows) if rows else ((),) * len(COLUMNS)
    for name, values in zip(COLUMNS, transposed):
        if name in names:
            found[name] = list(values)
    return found
