"""Places are shared out so that nobody can have all of them."""

from __future__ import annotations

import pytest

from worker.features.webhooks import service as origins_module
from worker.features.webhooks.service import OriginLimits


def test_one_origin_has_half_of_the_places_at_most() -> None:
    origins = OriginLimits(8)
    assert [origins.acquire("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [origins.acquire("b") for _ in range(5)] == [True] * 4 + [False]
    assert origins.free == 0
    assert not origins.acquire("c")
    origins.release("a", timed_out=False)
    assert origins.acquire("c")


def test_one_that_hangs_has_a_single_place_until_it_answers_again() -> None:
    origins = OriginLimits(8)
    assert origins.acquire("a")
    origins.release("a", timed_out=True)
    assert [origins.acquire("a") for _ in range(3)] == [True, False, False]
    origins.release("a")  # nothing was sent: that tells nothing
    assert [origins.acquire("a") for _ in range(2)] == [True, False]
    origins.release("a", timed_out=False)
    assert [origins.acquire("a") for _ in range(2)] == [True, True]


def test_all_that_hang_together_leave_half_to_the_others() -> None:
    origins = OriginLimits(8)
    for name in "abcdefgh":
        origins.acquire(name)
        origins.release(name, timed_out=True)
    assert [origins.acquire(name) for name in "abcdefgh"] == [True] * 4 + [False] * 4
    assert [origins.acquire("sound") for _ in range(5)] == [True] * 4 + [False]


def test_a_single_place_is_anybodys() -> None:
    origins = OriginLimits(1)
    for name in "ab":
        assert origins.acquire(name)
        assert not origins.acquire(name)
        origins.release(name, timed_out=True)


def test_of_very_many_that_hang_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins_module, "MOST_SLOW_ORIGINS", 2)
    origins = OriginLimits(8)
    for name in "abac":
        origins.acquire(name)
        origins.release(name, timed_out=True)
    assert [origins.acquire("b") for _ in range(2)] == [True, True]
    assert [origins.acquire("a") for _ in range(2)] == [True, False]
    assert [origins.acquire("c") for _ in range(2)] == [True, False]
