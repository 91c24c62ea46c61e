"""Slots are shared so that no origin can take all of them."""

from __future__ import annotations

import pytest

from worker.features.webhooks import service as origins_module
from worker.features.webhooks.service import OriginLimits


def test_one_origin_gets_at_most_half_of_the_slots() -> None:
    origins = OriginLimits(8)
    assert [origins.acquire("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [origins.acquire("b") for _ in range(5)] == [True] * 4 + [False]
    assert origins.free == 0
    assert not origins.acquire("c")
    origins.release("a", timed_out=False)
    assert origins.acquire("c")


def test_a_slow_origin_gets_one_slot_until_it_answers() -> None:
    origins = OriginLimits(8)
    assert origins.acquire("a")
    origins.release("a", timed_out=True)
    assert [origins.acquire("a") for _ in range(3)] == [True, False, False]
    origins.release("a")  # nothing was sent, so nothing is known
    assert [origins.acquire("a") for _ in range(2)] == [True, False]
    origins.release("a", timed_out=False)
    assert [origins.acquire("a") for _ in range(2)] == [True, True]


def test_all_slow_origins_together_get_half_of_the_slots() -> None:
    origins = OriginLimits(8)
    for name in "abcdefgh":
        origins.acquire(name)
        origins.release(name, timed_out=True)
    assert [origins.acquire(name) for name in "abcdefgh"] == [True] * 4 + [False] * 4
    assert [origins.acquire("sound") for _ in range(5)] == [True] * 4 + [False]


def test_a_single_slot_is_available_to_any_origin() -> None:
    origins = OriginLimits(1)
    for name in "ab":
        assert origins.acquire(name)
        assert not origins.acquire(name)
        origins.release(name, timed_out=True)


def test_the_number_of_slow_origins_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins_module, "MOST_SLOW_ORIGINS", 2)
    origins = OriginLimits(8)
    for name in "abac":
        origins.acquire(name)
        origins.release(name, timed_out=True)
    assert [origins.acquire("b") for _ in range(2)] == [True, True]
    assert [origins.acquire("a") for _ in range(2)] == [True, False]
    assert [origins.acquire("c") for _ in range(2)] == [True, False]
