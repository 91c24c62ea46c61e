"""Who may enter: places that tasks share, places that move, and those that Redis counts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

import worker.queue.limits
from common.contracts.jobs import JobKeys
from common.jobs.limits import TaskLimit
from tests.conftest import eventually
from tests.worker.kit import limits_of
from worker.queue.limits import UNLIMITED, TaskLimits
from worker.queue.messages import Message

MODEL = frozenset({"chat", "plan", "code"})


def told(number: int, task: str = "chat") -> Message:
    return Message.read(f"{number}-0", {b"task": task.encode(), b"job_id": b"j"})


class Bell:
    """Whoever looks after those who wait."""

    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


def limits(
    local: dict[str, int] | None = None,
    across: dict[str, int] | None = None,
    waiting: Collection[str] = (),
    running: Collection[tuple[str, str]] = (),
) -> tuple[TaskLimits, Bell]:
    bell = Bell()
    found = TaskLimits(
        limits_of(local),
        limits_of(across),
        JobKeys(),
        on_capacity=bell,
        is_waiting=waiting.__contains__,
        running=lambda: running,
    )
    return found, bell


def test_without_limits_nothing_is_counted() -> None:
    free, bell = limits()
    assert not free
    assert free.acquire(told(1))
    assert free.capacity("chat") == UNLIMITED
    assert free.global_limit("chat") is None
    free.release("chat", "1-0")
    free.on_admitted("chat", "1-0")
    assert bell.rung == 0
    assert (free.here, free.across, free.closed) == ([], [], {})


def test_a_place_is_one_message_s_until_it_leaves() -> None:
    one, bell = limits({"chat": 1})
    assert one.acquire(told(1))
    assert one.holds(told(1))
    assert not one.acquire(told(1))  # the same once more runs once
    assert not one.acquire(told(2))
    assert not one.holds(told(2))
    assert one.acquire(told(3, "embed"))
    assert one.capacity("chat") == 0
    one.release("chat", "2-0")  # was never inside
    assert one.capacity("chat") == 0
    one.release("chat", "1-0")
    assert (one.capacity("chat"), bell.rung) == (1, 2)
    assert one.acquire(told(2))


def test_tasks_of_a_group_share_their_places() -> None:
    group, _ = limits({"chat+plan+code": 2, "embed": 1})
    assert group.acquire(told(1, "chat"))
    assert group.acquire(told(2, "plan"))
    assert not group.acquire(told(3, "code"))
    assert group.acquire(told(4, "embed"))
    assert group.acquire(told(5, "rag"))
    group.release("plan", "2-0")
    assert [group.capacity(task) for task in ("chat", "plan", "code", "embed")] == [1, 1, 1, 0]
    assert group.acquire(told(3, "code"))
    assert [(each.limit.name, each.running) for each in group.here] == [
        ("chat+plan+code", 2),
        ("embed", 1),
    ]


def test_a_newer_one_does_not_overtake_those_who_wait() -> None:
    one, _ = limits({"chat": 1}, waiting={"chat"})
    assert not one.acquire(told(2))
    assert one.acquire(told(1), from_wait_queue=True)


# -- places that move --------------------------------------------------------------------------


def test_places_go_up_and_down() -> None:
    moving, bell = limits()
    moving.set_limit(MODEL, 0, "the model server does not answer")
    assert moving
    assert moving.closed == dict.fromkeys(sorted(MODEL), "the model server does not answer")
    assert not moving.acquire(told(1, "plan"))
    assert moving.acquire(told(2, "rag"))
    moving.set_limit(MODEL, 2)
    assert moving.closed == {}
    assert moving.acquire(told(1, "plan"))
    assert moving.acquire(told(3, "chat"))
    assert not moving.acquire(told(4, "chat"))
    moving.set_limit(MODEL, 1)  # what runs goes on
    assert moving.capacity("chat") == 0
    moving.release("plan", "1-0")
    assert moving.capacity("chat") == 0
    moving.release("chat", "3-0")
    assert moving.capacity("chat") == 1
    moving.set_limit(MODEL, None)
    assert not moving
    assert moving.capacity("chat") == UNLIMITED
    assert bell.rung == 6


def test_they_count_what_runs_already() -> None:
    moving, _ = limits(running=[("1-0", "chat"), ("9-0", "rag")])
    assert moving.acquire(told(1))
    moving.set_limit(MODEL, 1, "one slot")
    assert not moving.acquire(told(2))
    moving.release("chat", "1-0")
    assert moving.acquire(told(2))


def test_both_kinds_must_have_a_place() -> None:
    both, _ = limits({"chat": 2})
    both.set_limit(MODEL, 1)
    assert both.acquire(told(1, "plan"))
    assert not both.acquire(told(2, "chat"))
    both.release("plan", "1-0")
    assert both.acquire(told(2, "chat"))
    both.set_limit(MODEL, 5)
    assert both.acquire(told(3, "chat"))
    assert not both.acquire(told(4, "chat"))
    assert both.acquire(told(5, "plan"))
    assert [each.limit.slots for each in both.here] == [2, 5]


def test_there_are_never_fewer_places_than_none() -> None:
    moving, _ = limits()
    moving.set_limit(MODEL, -3)
    assert set(moving.closed) == MODEL
    assert moving.capacity("chat") == 0


# -- places that workers share -----------------------------------------------------------------


async def test_after_a_refusal_one_knocks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.queue.limits, "PROBE_S", 0.02)
    shared, bell = limits(across={"chat+plan": 1})
    assert shared.global_limit("plan") == (JobKeys().running("chat+plan"), 1)
    assert shared.across == [TaskLimit(frozenset({"chat", "plan"}), 1)]
    for number in (1, 2, 3):
        assert shared.acquire(told(number))
    for number in (1, 2, 3):
        shared.on_refused("chat", f"{number}-0")
        shared.release("chat", f"{number}-0")
    assert not shared.acquire(told(4, "plan"))  # nobody asks again before it is time
    assert shared.capacity("plan") == 0
    rung = bell.rung
    await eventually(lambda: bell.rung > rung)
    assert shared.capacity("plan") == 1
    assert shared.acquire(told(1), from_wait_queue=True)
    assert shared.capacity("plan") == 0  # one at a time
    shared.on_admitted("chat", "1-0")
    assert shared.capacity("plan") == 1


async def test_who_leaves_makes_room_at_once() -> None:
    shared, _ = limits(across={"chat": 1})
    assert shared.acquire(told(1))
    shared.on_admitted("chat", "1-0")
    assert shared.acquire(told(2))
    shared.on_refused("chat", "2-0")
    shared.release("chat", "2-0")
    assert not shared.acquire(told(3))
    shared.release("chat", "1-0")
    assert shared.acquire(told(3))
    await asyncio.sleep(0)


async def test_a_refusal_of_what_is_not_shared_changes_nothing() -> None:
    one, _ = limits({"chat": 1})
    one.on_refused("chat", "1-0")
    assert one.acquire(told(1))
