"""Worker baselines: counters of workers are added to the samples exactly once."""

from __future__ import annotations

import pytest

from common.contracts.stats import StatsField
from gateway.observability.history.collector import (
    NEW_WITHIN_MS,
    WORKER_FORGET_MS,
    WorkerBaselines,
    WorkerCounters,
    sum_counters,
)
from tests.gateway.observability.history.kit import START, beat, task_histograms

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


def test_lower_counters_were_reset() -> None:
    assert WorkerCounters(5).since(WorkerCounters(9)) == WorkerCounters(5)


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"[]", b"7", b'{"w":1}', b'{"w":[1,2]}', b'{"w":[1,2,3,4,5,"x"]}']
)
def test_invalid_baselines_are_ignored(raw: bytes) -> None:
    assert WorkerBaselines.decode(raw).encode() == "{}"
