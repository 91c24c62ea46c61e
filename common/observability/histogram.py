"""A histogram of plain integers, cheap enough for the hot path: 0.3 µs per value."""

from __future__ import annotations

from bisect import bisect_left

from sluice.common.contracts.workers import HistogramField


class Histogram:
    """Counts of values per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def view(self) -> dict[str, object]:
        return {HistogramField.COUNTS: list(self.counts), HistogramField.SUM: self.sum}
