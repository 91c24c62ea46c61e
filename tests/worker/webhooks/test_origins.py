"""Places are shared out so that nobody can have all of them."""

from __future__ import annotations

import pytest

from worker.webhooks import origins as origins_module
from worker.webhooks.origins import Origins


def test_one_origin_has_half_of_the_places_at_most() -> None:
    origins = Origins(8)
    assert [origins.enter("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [origins.enter("b") for _ in range(5)] == [True] * 4 + [False]
    assert origins.free == 0
    assert not origins.enter("c")
    origins.leave("a", timed_out=False)
    assert origins.enter("c")


def test_one_that_hangs_has_a_single_place_until_it_answers_again() -> None:
    origins = Origins(8)
    assert origins.enter("a")
    origins.leave("a", timed_out=True)
    assert [origins.enter("a") for _ in range(3)] == [True, False, False]
    origins.leave("a")  # nothing was sent: that tells nothing
    assert [origins.enter("a") for _ in range(2)] == [True, False]
    origins.leave("a", timed_out=False)
    assert [origins.enter("a") for _ in range(2)] == [True, True]


def test_all_that_hang_together_leave_half_to_the_others() -> None:
    origins = Origins(8)
    for name in "abcdefgh":
        origins.enter(name)
        origins.leave(name, timed_out=True)
    assert [origins.enter(name) for name in "abcdefgh"] == [True] * 4 + [False] * 4
    assert [origins.enter("sound") for _ in range(5)] == [True] * 4 + [False]


def test_a_single_place_is_anybodys() -> None:
    origins = Origins(1)
    for name in "ab":
        assert origins.enter(name)
        assert not origins.enter(name)
        origins.leave(name, timed_out=True)


def test_of_very_many_that_hang_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins_module, "MOST_HANGING", 2)
    origins = Origins(8)
    for name in "abac":
        origins.enter(name)
        origins.leave(name, timed_out=True)
    assert [origins.enter("b") for _ in range(2)] == [True, True]
    assert [origins.enter("a") for _ in range(2)] == [True, False]
    assert [origins.enter("c") for _ in range(2)] == [True, False]
