"""Task limits: configured ones, those set at runtime, and those that Redis counts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

import worker.queue.limits
from common.contracts.jobs import JobKeys
from common.jobs.limits import TaskLimit
from tests.support.waiting import eventually
from tests.support.worker.harness import limits_of
from worker.queue.limits import UNLIMITED, TaskLimits
from worker.queue.messages import Message

MODEL = frozenset({"chat", "plan", "code"})


def message(number: int, task: str = "chat") -> Message:
    return Message.read(f"{number}-0", {b"task": task.encode(), b"job_id": b"j"})


class Bell:
    """Counts the calls of `on_capacity`."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


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
    assert free.acquire(message(1))
    assert free.capacity("chat") == UNLIMITED
    assert free.global_limit("chat") is None
    free.release("chat", "1-0")
    free.on_admitted("chat", "1-0")
    assert bell.calls == 0
    assert (free.here, free.across, free.closed) == ([], [], {})


def test_a_slot_belongs_to_one_message_until_it_is_released() -> None:
    one, bell = limits({"chat": 1})
    one.on_refused("chat", "1-0")  # without a global limit it changes nothing
    assert one.acquire(message(1))
    assert one.holds(message(1))
    assert not one.acquire(message(1))  # the same message runs once
    assert not one.acquire(message(2))
    assert not one.holds(message(2))
    assert one.acquire(message(3, "embed"))
    assert one.capacity("chat") == 0
    one.release("chat", "2-0")  # has no slot
    assert one.capacity("chat") == 0
    one.release("chat", "1-0")
    assert (one.capacity("chat"), bell.calls) == (1, 2)
    assert one.acquire(message(2))


def test_tasks_of_a_group_share_their_slots() -> None:
    group, _ = limits({"chat+plan+code": 2, "embed": 1})
    assert group.acquire(message(1, "chat"))
    assert group.acquire(message(2, "plan"))
    assert not group.acquire(message(3, "code"))
    assert group.acquire(message(4, "embed"))
    assert group.acquire(message(5, "rag"))
    group.release("plan", "2-0")
    assert [group.capacity(task) for task in ("chat", "plan", "code", "embed")] == [1, 1, 1, 0]
    assert group.acquire(message(3, "code"))
    assert [(each.limit.name, each.running) for each in group.here] == [
        ("chat+plan+code", 2),
        ("embed", 1),
    ]


def test_a_newer_message_does_not_overtake_waiting_ones() -> None:
    one, _ = limits({"chat": 1}, waiting={"chat"})
    assert not one.acquire(message(2))
    assert one.acquire(message(1), from_wait_queue=True)


# -- limits at runtime -------------------------------------------------------------------------


def test_the_number_of_slots_can_change() -> None:
    moving, bell = limits()
    moving.set_limit(MODEL, 0, "the model server does not answer")
    assert moving
    assert moving.closed == dict.fromkeys(sorted(MODEL), "the model server does not answer")
    assert not moving.acquire(message(1, "plan"))
    assert moving.acquire(message(2, "rag"))
    moving.set_limit(MODEL, -3)  # counts as 0
    assert set(moving.closed) == MODEL
    assert moving.capacity("chat") == 0
    moving.set_limit(MODEL, 2)
    assert moving.closed == {}
    assert moving.acquire(message(1, "plan"))
    assert moving.acquire(message(3, "chat"))
    assert not moving.acquire(message(4, "chat"))
    moving.set_limit(MODEL, 1)  # running jobs continue
    assert moving.capacity("chat") == 0
    moving.release("plan", "1-0")
    assert moving.capacity("chat") == 0
    moving.release("chat", "3-0")
    assert moving.capacity("chat") == 1
    moving.set_limit(MODEL, None)
    assert not moving
    assert moving.capacity("chat") == UNLIMITED
    assert bell.calls == 7


def test_a_new_limit_counts_running_jobs() -> None:
    moving, _ = limits(running=[("1-0", "chat"), ("9-0", "rag")])
    assert moving.acquire(message(1))
    moving.set_limit(MODEL, 1, "one slot")
    assert not moving.acquire(message(2))
    moving.release("chat", "1-0")
    assert moving.acquire(message(2))


def test_configured_and_dynamic_limits_both_apply() -> None:
    both, _ = limits({"chat": 2})
    both.set_limit(MODEL, 1)
    assert both.acquire(message(1, "plan"))
    assert not both.acquire(message(2, "chat"))
    both.release("plan", "1-0")
    assert both.acquire(message(2, "chat"))
    both.set_limit(MODEL, 5)
    assert both.acquire(message(3, "chat"))
    assert not both.acquire(message(4, "chat"))
    assert both.acquire(message(5, "plan"))
    assert [each.limit.slots for each in both.here] == [2, 5]


# -- limits across workers ---------------------------------------------------------------------


async def test_after_a_refusal_one_message_is_tried_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker.queue.limits, "PROBE_S", 0.02)
    shared, bell = limits(across={"chat+plan": 1})
    assert shared.global_limit("plan") == (JobKeys().running("chat+plan"), 1)
    assert shared.across == [TaskLimit(frozenset({"chat", "plan"}), 1)]
    for number in (1, 2, 3):
        assert shared.acquire(message(number))
    for number in (1, 2, 3):
        shared.on_refused("chat", f"{number}-0")
        shared.release("chat", f"{number}-0")
    assert not shared.acquire(message(4, "plan"))  # not tried again before the timer is over
    assert shared.capacity("plan") == 0
    calls = bell.calls
    await eventually(lambda: bell.calls > calls)
    assert shared.capacity("plan") == 1
    assert shared.acquire(message(1), from_wait_queue=True)
    assert shared.capacity("plan") == 0  # one at a time
    shared.on_admitted("chat", "1-0")
    assert shared.capacity("plan") == 1


async def test_a_released_global_slot_can_be_used_at_once() -> None:
    shared, _ = limits(across={"chat": 1})
    assert shared.acquire(message(1))
    shared.on_admitted("chat", "1-0")
    assert shared.acquire(message(2))
    shared.on_refused("chat", "2-0")
    shared.release("chat", "2-0")
    assert not shared.acquire(message(3))
    shared.release("chat", "1-0")
    assert shared.acquire(message(3))
    await asyncio.sleep(0)
