"""Histograms are merged without loss, and percentiles are in the right bucket."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter

import pytest

from common.contracts.workers import SECONDS_BOUNDS
from gateway.observability.history import samples


def counts_of(values: list[float]) -> dict[int, int]:
    return dict(Counter(bisect_left(SECONDS_BOUNDS, value) for value in values))


def test_without_values_there_is_no_percentile() -> None:
    assert samples.percentile_ms({}, 0.5) is None
    assert samples.percentile_ms({3: 0}, 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentile_is_in_the_right_bucket(share: float) -> None:
    rng = random.Random(7)
    for _ in range(50):
        values = sorted(rng.lognormvariate(-1, 2) for _ in range(rng.randrange(1, 400)))
        found = samples.percentile_ms(counts_of(values), share)
        assert found is not None
        rank = max(0, -(-int(share * 1000) * len(values) // 1000) - 1)
        bucket = bisect_left(SECONDS_BOUNDS, values[rank])
        low = SECONDS_BOUNDS[bucket - 1] if bucket else 0.0
        high = SECONDS_BOUNDS[min(bucket, samples.LAST_BUCKET - 1)]
        assert low * 1000 - 0.001 <= found <= high * 1000 + 0.001


def test_merged_counts_have_the_same_percentiles() -> None:
    rng = random.Random(3)
    parts = [[rng.expovariate(2) for _ in range(rng.randrange(30))] for _ in range(20)]
    whole = counts_of([value for part in parts for value in part])
    merged = samples.merge_counts(counts_of(part) for part in parts)
    assert merged == whole
    for share in (0.5, 0.95, 0.99):
        assert samples.percentile_ms(merged, share) == samples.percentile_ms(whole, share)


def test_a_percentile_is_at_most_the_last_bound() -> None:
    assert samples.percentile_ms({samples.LAST_BUCKET: 5}, 0.5) == SECONDS_BOUNDS[-1] * 1000


def test_encoded_counts_can_be_decoded() -> None:
    counts = {0: 3, 7: 12, samples.LAST_BUCKET: 1}
    assert samples.encode({**counts, 4: 0}) == f"0:3,7:12,{samples.LAST_BUCKET}:1"
    assert samples.decode(samples.encode(counts)) == counts
    assert samples.decode("") == {}


@pytest.mark.parametrize("raw", ["x", "1", "1:", ":1", "1:-2", "99:1", "1:1.5", "1:" + "9" * 99])
def test_invalid_counts_are_ignored(raw: str) -> None:
    assert samples.decode(f"2:4,{raw},5:1") == {2: 4, 5: 1}
