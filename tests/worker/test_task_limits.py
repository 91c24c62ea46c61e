"""Who may enter: places that tasks share, places that move, and those that Redis counts."""

from __future__ import annotations

import asyncio

import pytest

import worker.limits
from common.contracts.jobs import JobKeys
from common.task_limits import TaskLimit
from tests.conftest import eventually
from tests.worker.kit import limits_of
from worker.limits import ANY_NUMBER, TaskLimits
from worker.messages import Message

MODEL = frozenset({"chat", "plan", "code"})


def told(number: int, task: str = "chat") -> Message:
    return Message(f"{number}-0", {b"task": task.encode(), b"job_id": b"j"})


class Bell:
    """Whoever looks after those who wait."""

    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


def limits(
    local: dict[str, int] | None = None, across: dict[str, int] | None = None
) -> tuple[TaskLimits, Bell]:
    found, bell = TaskLimits(limits_of(local), limits_of(across), JobKeys()), Bell()
    found.on_room = bell
    return found, bell


def test_without_limits_nothing_is_counted() -> None:
    free, bell = limits()
    assert not free
    assert free.enter(told(1))
    assert free.room("chat") == ANY_NUMBER
    assert free.shared_by("chat") is None
    free.leave("chat", "1-0")
    free.admitted("chat", "1-0")
    assert bell.rung == 0
    assert (free.here, free.across, free.closed) == ([], [], {})


def test_a_place_is_one_message_s_until_it_leaves() -> None:
    one, bell = limits({"chat": 1})
    assert one.enter(told(1))
    assert one.inside(told(1))
    assert not one.enter(told(1))  # the same once more runs once
    assert not one.enter(told(2))
    assert not one.inside(told(2))
    assert one.enter(told(3, "embed"))
    assert one.room("chat") == 0
    one.leave("chat", "2-0")  # was never inside
    assert one.room("chat") == 0
    one.leave("chat", "1-0")
    assert (one.room("chat"), bell.rung) == (1, 2)
    assert one.enter(told(2))


def test_tasks_of_a_group_share_their_places() -> None:
    group, _ = limits({"chat+plan+code": 2, "embed": 1})
    assert group.enter(told(1, "chat"))
    assert group.enter(told(2, "plan"))
    assert not group.enter(told(3, "code"))
    assert group.enter(told(4, "embed"))
    assert group.enter(told(5, "rag"))
    group.leave("plan", "2-0")
    assert [group.room(task) for task in ("chat", "plan", "code", "embed")] == [1, 1, 1, 0]
    assert group.enter(told(3, "code"))
    assert [(each.limit.name, each.running) for each in group.here] == [
        ("chat+plan+code", 2),
        ("embed", 1),
    ]


def test_a_newer_one_does_not_overtake_those_who_wait() -> None:
    one, _ = limits({"chat": 1})
    one.queued = {"chat"}
    assert not one.enter(told(2))
    assert one.enter(told(1), called=True)


# -- places that move --------------------------------------------------------------------------


def test_places_go_up_and_down() -> None:
    moving, bell = limits()
    moving.set_places(MODEL, 0, "the model server does not answer")
    assert moving
    assert moving.closed == dict.fromkeys(sorted(MODEL), "the model server does not answer")
    assert not moving.enter(told(1, "plan"))
    assert moving.enter(told(2, "rag"))
    moving.set_places(MODEL, 2)
    assert moving.closed == {}
    assert moving.enter(told(1, "plan"))
    assert moving.enter(told(3, "chat"))
    assert not moving.enter(told(4, "chat"))
    moving.set_places(MODEL, 1)  # what runs goes on
    assert moving.room("chat") == 0
    moving.leave("plan", "1-0")
    assert moving.room("chat") == 0
    moving.leave("chat", "3-0")
    assert moving.room("chat") == 1
    moving.set_places(MODEL, None)
    assert not moving
    assert moving.room("chat") == ANY_NUMBER
    assert bell.rung == 6


def test_they_count_what_runs_already() -> None:
    moving, _ = limits()
    assert moving.enter(told(1))
    moving.running = lambda: [("1-0", "chat"), ("9-0", "rag")]
    moving.set_places(MODEL, 1, "one slot")
    assert not moving.enter(told(2))
    moving.leave("chat", "1-0")
    assert moving.enter(told(2))


def test_both_kinds_must_have_a_place() -> None:
    both, _ = limits({"chat": 2})
    both.set_places(MODEL, 1)
    assert both.enter(told(1, "plan"))
    assert not both.enter(told(2, "chat"))
    both.leave("plan", "1-0")
    assert both.enter(told(2, "chat"))
    both.set_places(MODEL, 5)
    assert both.enter(told(3, "chat"))
    assert not both.enter(told(4, "chat"))
    assert both.enter(told(5, "plan"))
    assert [each.limit.places for each in both.here] == [2, 5]


def test_there_are_never_fewer_places_than_none() -> None:
    moving, _ = limits()
    moving.set_places(MODEL, -3)
    assert set(moving.closed) == MODEL
    assert moving.room("chat") == 0


# -- places that workers share -----------------------------------------------------------------


async def test_after_a_refusal_one_knocks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.limits, "PROBE_S", 0.02)
    shared, bell = limits(across={"chat+plan": 1})
    assert shared.shared_by("plan") == (JobKeys().running("chat+plan"), 1)
    assert shared.across == [TaskLimit(frozenset({"chat", "plan"}), 1)]
    for number in (1, 2, 3):
        assert shared.enter(told(number))
    for number in (1, 2, 3):
        shared.refused("chat", f"{number}-0")
        shared.leave("chat", f"{number}-0")
    assert not shared.enter(told(4, "plan"))  # nobody asks again before it is time
    assert shared.room("plan") == 0
    rung = bell.rung
    await eventually(lambda: bell.rung > rung)
    assert shared.room("plan") == 1
    assert shared.enter(told(1), called=True)
    assert shared.room("plan") == 0  # one at a time
    shared.admitted("chat", "1-0")
    assert shared.room("plan") == 1


async def test_who_leaves_makes_room_at_once() -> None:
    shared, _ = limits(across={"chat": 1})
    assert shared.enter(told(1))
    shared.admitted("chat", "1-0")
    assert shared.enter(told(2))
    shared.refused("chat", "2-0")
    shared.leave("chat", "2-0")
    assert not shared.enter(told(3))
    shared.leave("chat", "1-0")
    assert shared.enter(told(3))
    await asyncio.sleep(0)


async def test_a_refusal_of_what_is_not_shared_changes_nothing() -> None:
    one, _ = limits({"chat": 1})
    one.refused("chat", "1-0")
    assert one.enter(told(1))
