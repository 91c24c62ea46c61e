"""Histograms as a sample keeps them: counts by bucket, which add up without any loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from common.contracts.workers import SECONDS_BOUNDS

#: Number of the bucket without an upper bound.
LAST: Final = len(SECONDS_BOUNDS)

#: Counts by number of the bucket; those that are 0 are left out.
Counts = Mapping[int, int]


def encode(counts: Counts) -> str:
    """`3:17,4:2`"""
    return ",".join(f"{bucket}:{count}" for bucket, count in sorted(counts.items()) if count)


def decode(raw: str) -> dict[int, int]:
    """The same back; what a foreign hand wrote otherwise counts for nothing."""
    found: dict[int, int] = {}
    for part in raw.split(",") if raw else ():
        bucket, _, count = part.partition(":")
        if bucket.isdecimal() and count.isdecimal() and len(part) < 32 and int(bucket) <= LAST:
            found[int(bucket)] = int(count)
    return found


def merged(many: Iterable[Counts]) -> dict[int, int]:
    """All of them together."""
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
            if bucket >= LAST:
                break
            low = SECONDS_BOUNDS[bucket - 1] if bucket else 0.0
            high = SECONDS_BOUNDS[bucket]
            return round((low + (high - low) * (wanted - below) / inside) * 1000, 3)
        below += inside
    return SECONDS_BOUNDS[-1] * 1000
