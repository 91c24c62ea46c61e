"""Samples: encoding, merging, percentiles of histograms, and baselines of worker counters."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter

import pytest

from common.contracts.stats import COUNT_FIELDS, HISTOGRAM_FIELDS, TOTAL_FIELDS, StatsField
from common.contracts.workers import SECONDS_BOUNDS
from gateway.observability.history import samples
from gateway.observability.history.collector import (
    NEW_WITHIN_MS,
    WORKER_FORGET_MS,
    WorkerBaselines,
    WorkerCounters,
    sum_counters,
)
from gateway.observability.history.samples import Sample, merge_samples
from tests.support.gateway.history import START, beat, sample, task_histograms


def entry(one: Sample) -> dict[bytes, bytes]:
    flat = [text.encode() for text in one.encode()]
    return dict(zip(flat[::2], flat[1::2]))


def test_encoded_sample_can_be_decoded() -> None:
    whole = sample(START, {3: 4}, depth=5, temperature_c=61.5, gpu_load=0.25, done=0)
    fields = entry(whole)
    assert list(fields) == [field.value.encode() for field in StatsField], (
        "every entry has the same fields"
    )
    found = Sample.decode(f"{START}-0".encode(), fields)
    assert found.ts == START
    assert found.values == whole.values
    assert StatsField.ERROR not in found.values, "unknown is not zero"
    assert found.spreads == {StatsField.END_TO_END: {3: 4}}


@pytest.mark.parametrize("raw", [b"x", b"nan", b"inf", b"\xff", b"1e999"])
def test_invalid_fields_are_ignored(raw: bytes) -> None:
    found = Sample.decode(b"5-0", {b"depth": raw, b"done": b"2", b"unknown": b"3"})
    assert found == Sample(5, {StatsField.DONE: 2}, {})


def test_merged_sample_has_sums_worst_values_and_totals() -> None:
    first = sample(START, {1: 2}, done=2, depth=9, done_total=10, available_bytes=100)
    second = sample(START + 1000, {1: 1, 2: 5}, done=3, depth=1, done_total=13, available_bytes=70)
    third = sample(START + 2000, depth=4)
    whole = merge_samples(START, [first, second, third])
    assert whole.ts == START
    assert whole.values == {
        StatsField.DONE: 5,
        StatsField.DEPTH: 9,
        StatsField.DONE_TOTAL: 13,
        StatsField.AVAILABLE_BYTES: 70,
    }
    assert whole.spreads[StatsField.END_TO_END] == {1: 3, 2: 5}
    plain = [field for field in StatsField if field not in HISTOGRAM_FIELDS]
    whole = merge_samples(START, [Sample(START, dict.fromkeys(plain, 1), {})])
    assert set(whole.values) == set(plain), "every field is merged"
    assert not set(COUNT_FIELDS) & set(TOTAL_FIELDS)


def counts_of(values: list[float]) -> dict[int, int]:
    return dict(Counter(bisect_left(SECONDS_BOUNDS, value) for value in values))


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentile_is_in_the_right_bucket(share: float) -> None:
    assert samples.percentile_ms({}, share) is None
    assert samples.percentile_ms({3: 0}, share) is None
    assert samples.percentile_ms({samples.LAST_BUCKET: 5}, share) == SECONDS_BOUNDS[-1] * 1000
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


def test_encoded_counts_can_be_decoded() -> None:
    counts = {0: 3, 7: 12, samples.LAST_BUCKET: 1}
    assert samples.encode({**counts, 4: 0}) == f"0:3,7:12,{samples.LAST_BUCKET}:1"
    assert samples.decode(samples.encode(counts)) == counts
    assert samples.decode("") == {}


@pytest.mark.parametrize("raw", ["x", "1", "1:", ":1", "1:-2", "99:1", "1:1.5", "1:" + "9" * 99])
def test_invalid_histograms_are_ignored(raw: str) -> None:
    assert samples.decode(f"2:4,{raw},5:1") == {2: 4, 5: 1}


OLD = START - NEW_WITHIN_MS


def test_only_increases_count() -> None:
    first = beat(started_ms=OLD, seen_ms=START, tally=task_histograms(5, 1, waits=(2,)))
    then = beat(started_ms=OLD, seen_ms=START + 5000, tally=task_histograms(5, 4, waits=(3,)))
    seen, increases = WorkerBaselines().diff([first], START)
    assert increases == [], "it is unknown which counts are already in the samples"
    seen, increases = seen.diff([then], START + 5000)
    _, spreads = sum_counters(increases)
    assert spreads == {StatsField.END_TO_END: {1: 3}, StatsField.QUEUE_WAIT: {0: 1}}
    _, increases = seen.diff([then], START + 6000)
    assert increases == [], "no new heartbeat"


def test_all_counts_of_a_new_worker_are_added() -> None:
    new_worker = beat(started_ms=START - 1000, seen_ms=START, tally=task_histograms(2))
    seen, increases = WorkerBaselines().diff([new_worker], START)
    assert sum_counters(increases)[1][StatsField.END_TO_END] == {0: 2}
    again = beat(started_ms=START + 500, seen_ms=START + 1000, tally=task_histograms(1))
    _, increases = seen.diff([again], START + 1000)
    assert sum_counters(increases)[1][StatsField.END_TO_END] == {0: 1}, (
        "another process of that name"
    )
    assert WorkerCounters(5).since(WorkerCounters(9)) == WorkerCounters(5), "it was reset"


def test_tokens_are_counted() -> None:
    def heartbeat(at: int, prompt: int, completion: int) -> object:
        model = {"state": "ready", "prompt_tokens": prompt, "completion_tokens": completion}
        return beat(started_ms=OLD, seen_ms=at, model=model)

    seen, _ = WorkerBaselines().diff([heartbeat(START, 100, 10)], START)  # type: ignore[list-item]
    _, increases = seen.diff([heartbeat(START + 1, 130, 17)], START)  # type: ignore[list-item]
    values, _ = sum_counters(increases)
    assert values == {StatsField.PROMPT_TOKENS: 30, StatsField.COMPLETION_TOKENS: 7}


def test_next_sampler_restores_the_baselines() -> None:
    first = beat(started_ms=OLD, seen_ms=START, tally=task_histograms(0, 7, waits=(1,)))
    seen, _ = WorkerBaselines().diff([first], START)
    later = beat(started_ms=OLD, seen_ms=START + 1, tally=task_histograms(0, 9, waits=(1,)))
    _, increases = WorkerBaselines.decode(seen.encode().encode()).diff([later], START)
    assert sum_counters(increases)[1] == {StatsField.END_TO_END: {1: 2}, StatsField.QUEUE_WAIT: {}}


def test_baseline_of_a_dead_worker_is_dropped() -> None:
    seen, _ = WorkerBaselines().diff([beat(started_ms=OLD, seen_ms=START)], START)
    assert "w1" in seen.encode()
    seen, _ = seen.diff([], START + WORKER_FORGET_MS)
    assert seen.encode() == "{}"


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"[]", b"7", b'{"w":1}', b'{"w":[1,2]}', b'{"w":[1,2,3,4,5,"x"]}']
)
def test_invalid_baselines_are_ignored(raw: bytes) -> None:
    assert WorkerBaselines.decode(raw).encode() == "{}"
