"""Limits by task, here and across workers: never exceeded, and other tasks do not wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from common.contracts.jobs import WAIT_QUEUE_PREFIX
from common.jobs.options import Backoff
from common.jobs.store import WorkerIdentity
from tests.common.aging import hurry
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker, job_options, registry_of


class Counting:
    """A handler that counts the running jobs of each task, and holds them until released."""

    def __init__(self, *held: str) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.held = set(held)
        self.open = asyncio.Event()

    async def handle(self, context: Any, payload: Any) -> None:
        task = context.task
        self.begun[task] += 1
        self.running[task] += 1
        self.most[task] = max(self.most[task], self.running[task])
        try:
            if task in self.held:
                await self.open.wait()
            await asyncio.sleep(0.002)
        finally:
            self.running[task] -= 1


def named(name: str, lease_ms: int = 30_000) -> WorkerIdentity:
    return WorkerIdentity("workers", name, lease_ms, 600)


# -- here -------------------------------------------------------------------------------------


async def test_a_local_limit_holds_and_other_tasks_continue(rig: RigMaker) -> None:
    count = Counting("chat")
    rigged = rig(
        registry=registry_of(count.handle, "chat", "plan"), max_inflight=4, task_limits={"chat": 1}
    )
    await rigged.group()
    chats = await rigged.post(6, task="chat")
    plans = await rigged.post(10, task="plan")
    rigged.start()
    # The first chat job does not end, and delays only other chat jobs.
    assert await rigged.ended(plans) == {b"done"}
    assert count.begun["chat"] == 1
    count.open.set()
    assert await rigged.ended(chats) == {b"done"}
    assert count.most["chat"] == 1
    assert count.most["plan"] <= 3
    await rigged.all_acked()
    await eventually(lambda: rigged.consumer.waiting.total == 0)


async def test_waiting_messages_do_not_stop_reading(rig: RigMaker) -> None:
    """However many messages wait for a slot of their task, later messages of other tasks run."""
    count = Counting("chat")
    rigged = rig(
        registry=registry_of(count.handle, "chat", "plan"), max_inflight=2, task_limits={"chat": 1}
    )
    await rigged.group()
    chats = await rigged.post(60, task="chat")
    [plan] = await rigged.post(task="plan")
    rigged.start()
    assert await rigged.settled(plan) == b"done"
    assert count.begun["chat"] == 1
    count.open.set()
    assert await rigged.ended(chats) == {b"done"}
    assert count.most["chat"] == 1


async def test_too_many_waiting_messages_pause_reading(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.wait_queue.MOST_WAITING", 4)
    count = Counting("chat")
    rigged = rig(
        registry=registry_of(count.handle, "chat", "plan"), max_inflight=2, task_limits={"chat": 1}
    )
    await rigged.group()
    chats = await rigged.post(20, task="chat")
    [plan] = await rigged.post(task="plan")
    rigged.start()
    await eventually(lambda: rigged.consumer.waiting.full)
    taken = await rigged.pending()
    assert taken <= 1 + 4 + 2  # running, waiting, and at most one more read
    assert (await rigged.job(plan))[b"status"] == b"queued"
    count.open.set()
    assert await rigged.ended([*chats, plan]) == {b"done"}
    assert count.most["chat"] == 1


@pytest.mark.parametrize("kind", ["local", "across"])
async def test_a_waiting_message_that_vanishes_delays_no_other(rig: RigMaker, kind: str) -> None:
    """Another worker ran it, or it was canceled and acked: the next message runs at once."""
    count = Counting("chat")
    limits = {"task_limits" if kind == "local" else "task_limits_global": {"chat": 1}}
    rigged = rig(registry=registry_of(count.handle, "chat"), max_inflight=3, **limits)
    await rigged.group()
    jobs = await rigged.post(4, task="chat")
    rigged.start()
    await eventually(lambda: count.begun["chat"] == 1 and rigged.consumer.waiting.total >= 2)
    # All waiting messages but the last are ended and acked by another worker, as in a takeover.
    entries = await rigged.client.xrange(rigged.keys.queue)
    ids = {fields[b"job_id"].decode(): entry_id for entry_id, fields in entries}
    for job_id in jobs[1:3]:
        await rigged.client.hset(rigged.keys.job(job_id), "status", "done")
        await rigged.client.xack(rigged.keys.queue, "workers", ids[job_id])
    count.open.set()
    assert await rigged.ended([jobs[0], jobs[3]], 5) == {b"done"}
    await eventually(lambda: rigged.consumer.waiting.total == 0)


@pytest.mark.parametrize("kind", ["local", "across"])
async def test_after_a_flush_no_message_counts_as_waiting(
    rig: RigMaker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting messages that no longer exist must not stop the worker from reading."""
    monkeypatch.setattr("worker.queue.wait_queue.MOST_WAITING", 4)
    monkeypatch.setattr("worker.queue.reader._FIRST_BACKOFF_S", 0.02)
    monkeypatch.setattr("worker.queue.deferred._BACKOFF_S", 0.02)
    count = Counting("chat")
    limits = {"task_limits" if kind == "local" else "task_limits_global": {"chat": 1}}
    rigged = rig(registry=registry_of(count.handle, "chat", "plan"), max_inflight=2, **limits)
    await rigged.group()
    await rigged.post(12, task="chat")
    rigged.start()
    await eventually(lambda: count.begun["chat"] == 1 and rigged.consumer.waiting.full)
    await rigged.client.flushdb()
    count.open.set()
    await eventually(lambda: count.running["chat"] == 0)
    jobs = await rigged.post(12, task="chat") + await rigged.post(2, task="plan")
    assert await rigged.ended(jobs, 10) == {b"done"}
    assert count.most["chat"] == 1


async def test_a_handler_that_ignores_its_timeout_frees_its_slot(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job has ended and its slot is free, so the slot of its task must be free as well."""
    monkeypatch.setattr("worker.execution.attempt.HARD_KILL_S", 0.02)
    left = asyncio.Event()

    async def handler(context: Any, payload: Any) -> Any:
        while payload.get("stubborn") and not left.is_set():
            try:
                await left.wait()
            except asyncio.CancelledError:
                continue

    rigged = rig(handler, max_inflight=2, task_limits={"chat": 1})
    rigged.start()
    try:
        [stuck] = await rigged.post(payload=b'{"stubborn":1}', options=job_options(0.02))
        assert await rigged.settled(stuck) == b"error"
        jobs = await rigged.post(3)
        assert await rigged.ended(jobs, 5) == {b"done"}
    finally:
        left.set()
    await eventually(lambda: [each.running for each in rigged.consumer.limits.here] == [0])
    [late] = await rigged.post()
    assert await rigged.settled(late) == b"done"


async def test_a_failing_job_frees_its_slot_between_attempts(rig: RigMaker) -> None:
    tries: Counter[str] = Counter()

    async def handler(context: Any, payload: Any) -> None:
        tries[context.job_id] += 1
        if payload.get("fails"):
            raise ConnectionError("away")

    rigged = rig(handler, max_inflight=2, task_limits={"chat": 1}, task_limits_global={"chat": 1})
    rigged.start()
    slow = job_options(backoff=Backoff(60, jitter=0))
    [waiting] = await rigged.post(payload=b'{"fails":1}', options=slow)
    await eventually(lambda: tries[waiting])
    jobs = await rigged.post(5)
    assert await rigged.ended(jobs) == {b"done"}
    assert (await rigged.job(waiting))[b"status"] == b"queued"
    assert tries[waiting] == 1


async def test_a_job_canceled_while_it_waits_for_a_slot(rig: RigMaker) -> None:
    count = Counting("chat")
    rigged = rig(registry=registry_of(count.handle, "chat"), task_limits={"chat": 1})
    await rigged.group()
    first, second, third = await rigged.post(3)
    rigged.start()
    await eventually(lambda: rigged.consumer.waiting.total == 2)
    assert (await rigged.cancel(second)).value == "canceled"
    count.open.set()
    assert await rigged.ended([first, third]) == {b"done"}
    assert count.begun["chat"] == 2
    assert await rigged.types(second) == [b"queued", b"canceled"]
    await rigged.all_acked()


# -- across workers ---------------------------------------------------------------------------


async def test_a_global_limit_holds_across_workers(rig: RigMaker) -> None:
    count = Counting()
    workers = [
        rig(
            registry=registry_of(count.handle, "chat", "plan"),
            identity=named(name),
            max_inflight=4,
            task_limits_global={"chat": 2},
        )
        for name in ("a", "b")
    ]
    await workers[0].group()
    jobs = await workers[0].post(30, task="chat")
    others = await workers[0].post(30, task="plan")
    for each in workers:
        each.start()
    assert await workers[0].ended([*jobs, *others]) == {b"done"}
    assert count.most["chat"] <= 2
    await workers[0].all_acked()
    await eventually(lambda: [each.consumer.waiting.total for each in workers] == [0, 0])
    assert await workers[0].client.zcard(workers[0].keys.running("chat")) == 0


async def test_a_task_at_its_global_limit_does_not_stop_other_tasks(rig: RigMaker) -> None:
    """Work-conserving: a refused job occupies no slot."""
    count = Counting("chat")
    holder, other = (
        rig(
            registry=registry_of(count.handle, "chat", "plan"),
            identity=named(name),
            max_inflight=2,
            task_limits_global={"chat": 1},
        )
        for name in ("a", "b")
    )
    await holder.group()
    [first] = await holder.post(task="chat")
    holder.start()
    await eventually(lambda: count.begun["chat"] == 1)
    other.start()
    chats = await other.post(4, task="chat")
    plans = await other.post(10, task="plan")
    assert await other.ended(plans) == {b"done"}
    assert count.begun["chat"] == 1
    count.open.set()
    assert await other.ended([first, *chats]) == {b"done"}
    assert count.most["chat"] == 1


async def test_the_global_slot_of_a_dead_worker_expires(rig: RigMaker) -> None:
    count = Counting()
    rigged = rig(registry=registry_of(count.handle, "chat"), task_limits_global={"chat": 1})
    await rigged.group()
    now_s, micros = await rigged.client.time()
    ends_ms = now_s * 1000 + micros // 1000 + 600
    await rigged.client.zadd(rigged.keys.running("chat"), {"of the dead": ends_ms})
    jobs = await rigged.post(2)
    rigged.start()
    assert await rigged.ended(jobs) == {b"done"}
    now_s, micros = await rigged.client.time()
    assert now_s * 1000 + micros // 1000 >= ends_ms
    first = min([(await rigged.events(job_id))[1][b"ts"] for job_id in jobs])
    assert ends_ms <= int(first) < ends_ms + 9000  # not a whole lease later


async def test_renewals_keep_the_global_slot(real_rig: RigMaker) -> None:
    """A job that runs longer than its lease still counts."""
    count = Counting("chat")
    holder, other = (
        real_rig(
            registry=registry_of(count.handle, "chat"),
            identity=named(name),
            max_inflight=2,
            task_limits_global={"chat": 1},
        )
        for name in ("a", "b")
    )
    await holder.group()
    jobs = await holder.post(2)
    holder.start()
    other.start()
    await eventually(lambda: count.begun["chat"] == 1)
    key = holder.keys.running("chat")
    for _ in range(3):  # longer than a lease
        [job_id] = await holder.client.zrange(key, 0, -1)
        nearly_over = await holder.now_ms() + 15_000
        await holder.client.zadd(key, {job_id: nearly_over})
        for rig_for in (holder, other):
            rig_for.leases.wake()

        async def renewed(job_id: bytes = job_id, after: int = nearly_over) -> bool:
            return bool(await holder.client.zscore(key, job_id) > after)

        await eventually(renewed)
        assert count.begun["chat"] == 1
    count.open.set()
    assert await holder.ended(jobs) == {b"done"}
    assert count.most["chat"] == 1


async def test_both_limits_at_once(rig: RigMaker) -> None:
    count = Counting()
    workers = [
        rig(
            registry=registry_of(count.handle, "chat", "plan"),
            identity=named(name),
            max_inflight=4,
            task_limits={"chat": 2, "plan": 1},
            task_limits_global={"chat": 3},
        )
        for name in ("a", "b")
    ]
    await workers[0].group()
    jobs = await workers[0].post(25, task="chat") + await workers[0].post(10, task="plan")
    for each in workers:
        each.start()
    assert await workers[0].ended(jobs) == {b"done"}
    assert count.most["chat"] <= 3
    assert count.most["plan"] <= 2
    await eventually(lambda: [each.consumer.waiting.total for each in workers] == [0, 0])


async def test_messages_that_wait_longer_than_a_lease_are_run_once(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers claim them meanwhile and put them back: each still runs once, and soon."""
    monkeypatch.setattr("worker.queue.recovery.LONGEST_WAIT_S", 0.1)
    runs: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def rig_for(name: str) -> Rig:
        async def handler(context: Any, payload: Any) -> None:
            runs[context.job_id] += 1
            inside[name] += 1
            most[name] = max(most[name], inside[name])
            await asyncio.sleep(0.05)
            inside[name] -= 1

        return rig(handler, identity=named(name), max_inflight=4, task_limits={"chat": 1})

    workers = [rig_for("a"), rig_for("b")]
    aging = hurry(monkeypatch, workers[0], WAIT_QUEUE_PREFIX, workers=2, wake_s=0.05)
    await workers[0].group()
    jobs = await workers[0].post(40)
    for one in workers:
        one.start(recover=True)
    assert await workers[0].ended(jobs) == {b"done"}  # about one second each
    assert aging.passed_ms > workers[0].worker.lease_ms
    assert set(most.values()) == {1}
    assert set(runs.values()) == {1}
    await workers[0].all_acked()
    for one in workers:
        await eventually(lambda one=one: one.consumer.waiting.total == 0)
