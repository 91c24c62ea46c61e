"""Limits by task, here and across workers: never exceeded, and other tasks do not wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

import sluice.worker.queue.limits
from sluice.common.contracts.jobs import WAIT_QUEUE_PREFIX, JobKeys
from sluice.common.jobs.limits import TaskLimit
from sluice.worker.queue.limits import UNLIMITED, TaskLimits
from sluice.worker.queue.messages import Message
from tests.support.store.aging import hurry
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate, Stubborn
from tests.support.worker.harness import (
    MakeWorker,
    WorkerHarness,
    job_options,
    limits_of,
    registry_of,
)

CHAT = {"chat": 1}
LOCAL, ACROSS = {"task_limits": CHAT}, {"task_limits_global": CHAT}


@pytest.fixture
def chats() -> Gate:
    """A handler that holds jobs of the task `chat`, and runs others."""
    return Gate(0.002, closed=True, held={"chat"})


def two_workers(make_worker: MakeWorker, gate: Gate, **options: Any) -> list[WorkerHarness]:
    registry = registry_of(gate, "chat", "plan")
    workers = [make_worker(registry=registry, **options)]
    other = workers[0].worker._replace(consumer="c2")
    return [*workers, make_worker(registry=registry, identity=other, **options)]


async def none_waiting(*workers: WorkerHarness) -> None:
    await eventually(lambda: not any(each.consumer.waiting.total for each in workers))


# -- here -------------------------------------------------------------------------------------


async def test_a_local_limit_holds_and_other_tasks_continue(
    make_worker: MakeWorker, chats: Gate
) -> None:
    """However many messages wait for a slot of their task, later messages of other tasks run."""
    worker = make_worker(registry=registry_of(chats, "chat", "plan"), max_inflight=3, **LOCAL)
    held = await worker.post(10, task="chat")
    plans = await worker.post(6, task="plan")
    worker.start()
    # The first chat job does not end, and delays only other chat jobs.
    assert await worker.ended(plans) == {b"done"}
    assert chats.started["chat"] == 1
    chats.open.set()
    assert await worker.ended(held) == {b"done"}
    assert chats.most_by_task["chat"] == 1
    assert chats.most_by_task["plan"] <= 2
    await worker.all_acked()
    await none_waiting(worker)


async def test_too_many_waiting_messages_pause_reading(
    make_worker: MakeWorker, chats: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.wait_queue.MOST_WAITING", 4)
    worker = make_worker(registry=registry_of(chats, "chat", "plan"), max_inflight=2, **LOCAL)
    held = await worker.post(12, task="chat")
    [plan] = await worker.post(task="plan")
    worker.start()
    await eventually(lambda: worker.consumer.waiting.full)
    assert await worker.pending() <= 1 + 4 + 2  # running, waiting, and at most one more read
    assert (await worker.job(plan))[b"status"] == b"queued"
    chats.open.set()
    assert await worker.ended([*held, plan]) == {b"done"}
    assert chats.most_by_task["chat"] == 1


@pytest.mark.parametrize("limits", [LOCAL, ACROSS], ids=["local", "across"])
async def test_a_waiting_message_that_vanishes_delays_no_other(
    make_worker: MakeWorker, chats: Gate, limits: dict[str, Any]
) -> None:
    """Another worker ran it, or it was canceled and acked: the next message runs at once."""
    worker = make_worker(chats, max_inflight=3, **limits)
    jobs = await worker.post(5)
    worker.start()
    await eventually(lambda: chats.started["chat"] == 1 and worker.consumer.waiting.total >= 3)
    # Two waiting messages are ended and acked by another worker, as in a takeover.
    entries = await worker.client.xrange(worker.keys.queue)
    ids = {fields[b"job_id"].decode(): entry_id for entry_id, fields in entries}
    for job_id in jobs[1:3]:
        await worker.client.hset(worker.keys.job(job_id), "status", "done")
        await worker.client.xack(worker.keys.queue, "workers", ids[job_id])
    assert (await worker.cancel(jobs[3])).value == "canceled"
    chats.open.set()
    assert await worker.ended([jobs[0], jobs[4]], 5) == {b"done"}
    assert chats.begun == [jobs[0], jobs[4]]
    assert await worker.types(jobs[3]) == [b"queued", b"canceled"]
    await worker.all_acked()
    await none_waiting(worker)


@pytest.mark.parametrize("limits", [LOCAL, ACROSS], ids=["local", "across"])
async def test_after_a_flush_no_message_counts_as_waiting(
    make_worker: MakeWorker, chats: Gate, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting messages that no longer exist must not stop the worker from reading."""
    monkeypatch.setattr("sluice.worker.queue.wait_queue.MOST_WAITING", 4)
    monkeypatch.setattr("sluice.worker.queue.reader._FIRST_BACKOFF_S", 0.02)
    monkeypatch.setattr("sluice.worker.queue.deferred._BACKOFF_S", 0.02)
    worker = make_worker(registry=registry_of(chats, "chat", "plan"), max_inflight=2, **limits)
    await worker.post(12, task="chat")
    worker.start()
    await eventually(lambda: chats.started["chat"] == 1 and worker.consumer.waiting.full)
    await worker.client.flushdb()
    chats.open.set()
    await eventually(lambda: chats.running["chat"] == 0)
    jobs = await worker.post(8, task="chat") + await worker.post(2, task="plan")
    assert await worker.ended(jobs, 10) == {b"done"}
    assert chats.most_by_task["chat"] == 1


async def test_a_handler_that_ignores_its_timeout_frees_its_slot(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job has ended and its slot is free, so the slot of its task must be free as well."""
    monkeypatch.setattr("sluice.worker.execution.attempt.HARD_KILL_S", 0.02)
    stubborn = Stubborn()
    worker = make_worker(stubborn, max_inflight=2, **LOCAL)
    try:
        await worker.run_job(b"error", options=job_options(0.02))
        assert await worker.ended(await worker.post(3, payload=b'{"fine":1}'), 5) == {b"done"}
    finally:
        stubborn.released.set()
    await eventually(lambda: [each.running for each in worker.consumer.limits.here] == [0])
    await worker.run_job(payload=b'{"fine":1}')


# -- across workers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "across", "most"),
    [
        ({}, {"chat": 2}, {"chat": 2}),
        ({"chat": 2, "plan": 1}, {"chat": 3}, {"chat": 3, "plan": 2}),
        ({"chat+plan": 2}, {"chat+plan+code": 3}, {"chat": 3, "plan": 3, "all": 3}),
    ],
    ids=["across", "both", "groups"],
)
async def test_a_global_limit_holds_across_workers(
    make_worker: MakeWorker, local: dict[str, int], across: dict[str, int], most: dict[str, int]
) -> None:
    gate = Gate(0.002)
    workers = two_workers(
        make_worker, gate, max_inflight=4, task_limits=local, task_limits_global=across
    )
    jobs = await workers[0].post(10, task="chat") + await workers[0].post(10, task="plan")
    for each in workers:
        each.start()
    assert await workers[0].ended(jobs) == {b"done"}
    seen = {**gate.most_by_task, "all": gate.most}
    assert all(seen[task] <= limit for task, limit in most.items()), seen
    assert sorted(gate.begun) == sorted(jobs)
    await workers[0].all_acked()
    await none_waiting(*workers)
    await eventually(lambda: workers[0].slots.busy == workers[1].slots.busy == 0)
    [name] = across
    assert await workers[0].client.zcard(workers[0].keys.running(name)) == 0


async def test_a_task_at_its_global_limit_does_not_stop_other_tasks(
    make_worker: MakeWorker, chats: Gate
) -> None:
    """Work-conserving: a refused job occupies no slot."""
    holder, other = two_workers(make_worker, chats, max_inflight=2, **ACROSS)
    [first] = await holder.post(task="chat")
    holder.start()
    await eventually(lambda: chats.started["chat"] == 1)
    other.start()
    refused = await other.post(4, task="chat")
    plans = await other.post(10, task="plan")
    assert await other.ended(plans) == {b"done"}
    assert chats.started["chat"] == 1
    chats.open.set()
    assert await other.ended([first, *refused]) == {b"done"}
    assert chats.most_by_task["chat"] == 1


async def test_the_global_slot_of_a_dead_worker_expires(make_worker: MakeWorker) -> None:
    worker = make_worker(Gate(), **ACROSS)
    ends_ms = await worker.now_ms() + 300
    await worker.client.zadd(worker.keys.running("chat"), {"of the dead": ends_ms})
    jobs = await worker.post(2)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    assert await worker.now_ms() >= ends_ms
    first = min([(await worker.events(job_id))[1][b"ts"] for job_id in jobs])
    assert ends_ms <= int(first) < ends_ms + 9000  # not a whole lease later


async def test_messages_that_wait_longer_than_a_lease_are_run_once(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers claim them meanwhile and put them back: each still runs once, and soon."""
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 0.1)
    gates = [Gate(0.05), Gate(0.05)]
    workers = [make_worker(gates[0], **LOCAL)]
    other = workers[0].worker._replace(consumer="c2")
    workers.append(make_worker(gates[1], identity=other, **LOCAL))
    aging = hurry(monkeypatch, workers[0], WAIT_QUEUE_PREFIX, workers=2, wake_s=0.05)
    jobs = await workers[0].post(30)
    for each in workers:
        each.start(recover=True)
    assert await workers[0].ended(jobs) == {b"done"}
    assert aging.passed_ms > workers[0].worker.lease_ms
    assert [gate.most for gate in gates] == [1, 1]
    assert Counter(gates[0].begun + gates[1].begun) == Counter(jobs)
    await workers[0].all_acked()
    await none_waiting(*workers)


# -- the slots of each task: configured ones, those set at runtime, and those that Redis counts


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
    monkeypatch.setattr(sluice.worker.queue.limits, "PROBE_S", 0.02)
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
