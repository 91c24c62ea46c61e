"""Limits by task, here and across workers: never exceeded, and other tasks do not wait."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from common.contracts.jobs import WAIT_QUEUE_PREFIX
from tests.support.store.aging import hurry
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate, Stubborn
from tests.support.worker.harness import MakeWorker, WorkerHarness, job_options, registry_of

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
    monkeypatch.setattr("worker.queue.wait_queue.MOST_WAITING", 4)
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
    monkeypatch.setattr("worker.queue.wait_queue.MOST_WAITING", 4)
    monkeypatch.setattr("worker.queue.reader._FIRST_BACKOFF_S", 0.02)
    monkeypatch.setattr("worker.queue.deferred._BACKOFF_S", 0.02)
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
    monkeypatch.setattr("worker.execution.attempt.HARD_KILL_S", 0.02)
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
    monkeypatch.setattr("worker.queue.recovery.LONGEST_WAIT_S", 0.1)
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
