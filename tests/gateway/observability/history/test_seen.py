"""What workers count themselves is in the samples once, whatever becomes of them or the keeper."""

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
from tests.gateway.observability.history.kit import START, beat, tally

OLD = START - NEW_WITHIN_MS


def test_only_what_was_added_counts() -> None:
    first = beat(started_ms=OLD, seen_ms=START, tally=tally(5, 1, waits=(2,)))
    then = beat(started_ms=OLD, seen_ms=START + 5000, tally=tally(5, 4, waits=(3,)))
    seen, news = WorkerBaselines().diff([first], START)
    assert news == [], "nobody knows how much of that is in the samples"
    seen, news = seen.diff([then], START + 5000)
    _, spreads = sum_counters(news)
    assert spreads == {StatsField.END_TO_END: {1: 3}, StatsField.QUEUE_WAIT: {0: 1}}
    _, news = seen.diff([then], START + 6000)
    assert news == [], "nothing was said since"


def test_all_that_a_new_worker_has_done_is_new() -> None:
    born = beat(started_ms=START - 1000, seen_ms=START, tally=tally(2))
    seen, news = WorkerBaselines().diff([born], START)
    assert sum_counters(news)[1][StatsField.END_TO_END] == {0: 2}
    again = beat(started_ms=START + 500, seen_ms=START + 1000, tally=tally(1))
    _, news = seen.diff([again], START + 1000)
    assert sum_counters(news)[1][StatsField.END_TO_END] == {0: 1}, "another process of that name"


def test_tokens_are_counted() -> None:
    def said(at: int, prompt: int, completion: int) -> object:
        model = {"state": "ready", "prompt_tokens": prompt, "completion_tokens": completion}
        return beat(started_ms=OLD, seen_ms=at, model=model)

    seen, _ = WorkerBaselines().diff([said(START, 100, 10)], START)  # type: ignore[list-item]
    _, news = seen.diff([said(START + 1, 130, 17)], START)  # type: ignore[list-item]
    values, _ = sum_counters(news)
    assert values == {StatsField.PROMPT_TOKENS: 30, StatsField.COMPLETION_TOKENS: 7}


def test_the_next_keeper_knows_what_the_last_one_has_seen() -> None:
    said = beat(started_ms=OLD, seen_ms=START, tally=tally(0, 7, waits=(1,)))
    seen, _ = WorkerBaselines().diff([said], START)
    later = beat(started_ms=OLD, seen_ms=START + 1, tally=tally(0, 9, waits=(1,)))
    _, news = WorkerBaselines.decode(seen.encode().encode()).diff([later], START)
    assert sum_counters(news)[1] == {StatsField.END_TO_END: {1: 2}, StatsField.QUEUE_WAIT: {}}


def test_who_was_silent_for_long_is_forgotten() -> None:
    seen, _ = WorkerBaselines().diff([beat(started_ms=OLD, seen_ms=START)], START)
    assert "w1" in seen.encode()
    seen, _ = seen.diff([], START + WORKER_FORGET_MS)
    assert seen.encode() == "{}"


def test_numbers_that_went_back_have_begun_anew() -> None:
    assert WorkerCounters(5).since(WorkerCounters(9)) == WorkerCounters(5)


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"[]", b"7", b'{"w":1}', b'{"w":[1,2]}', b'{"w":[1,2,3,4,5,"x"]}']
)
def test_what_is_no_record_of_ours_says_nothing(raw: bytes) -> None:
    assert WorkerBaselines.decode(raw).encode() == "{}"
