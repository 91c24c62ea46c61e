"""Prefetch: while there is a backlog, reports also fetch the next messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.redis.scripts import Record
from sluice.worker.errors import TransientError
from tests.support.servers import Backend
from tests.support.store.jobs import Proxy
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker, WorkerHarness, registry_of, within
from tests.support.worker.partitions import FaultyConnection


def reads_of(worker: WorkerHarness) -> list[int]:
    """The number of messages of each read from now on, without empty reads."""
    counts: list[int] = []
    read = worker.reader._read

    async def spy(count: int, **how: Any) -> Any:
        messages = await read(count, **how)
        counts.extend([len(messages)] if messages else [])
        return messages

    worker.reader._read = spy  # type: ignore[method-assign]
    return counts


async def test_a_backlog_is_processed_with_few_reads(make_worker: MakeWorker) -> None:
    handler = Gate()
    worker = make_worker(handler, max_inflight=4)
    jobs = await worker.post(100)
    reads = reads_of(worker)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    await worker.all_acked()
    assert len(reads) < 12  # without prefetch it would be 25
    assert handler.most <= 4
    assert sorted(handler.begun) == sorted(jobs)
    for job_id in (jobs[0], jobs[50], jobs[-1]):
        assert await worker.types(job_id) == [b"queued", b"running", b"done"]


async def test_never_more_messages_are_pending_than_slots(make_worker: MakeWorker) -> None:
    handler = Gate()
    worker = make_worker(handler, max_inflight=5, count=3)
    await worker.group()
    jobs = await worker.post(30)
    pending: list[int] = []
    worker.start()

    async def all_ended() -> bool:
        pending.append(await worker.pending())
        return len(handler.begun) == len(jobs)

    await eventually(all_ended)
    # Jobs whose report is in progress do not run any more, but are still pending.
    assert max(pending) <= 2 * 5
    assert handler.most <= 5
    assert len(worker.consumer.deferred) == 0


async def test_a_new_message_after_the_backlog_does_not_wait(make_worker: MakeWorker) -> None:
    worker = make_worker(Gate(), max_inflight=4, block_ms=5000)
    jobs = await worker.post(20)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    for _ in range(3):
        [late] = await worker.post(1)
        assert await within(4, worker.settled(late)) == b"done"


async def test_slots_for_messages_read_before_are_not_used(make_worker: MakeWorker) -> None:
    gate = Gate(closed=True)
    worker = make_worker(gate, max_inflight=3)
    await worker.group()
    jobs = await worker.post(3)
    worker.consumer.prefetch.active = True
    worker.slots.add_reserved(3)
    wanting = asyncio.create_task(worker.slots.reserve_free(1))  # as a caller with messages does
    await asyncio.sleep(0)
    worker.slots.remove_reserved(3)
    await worker.consumer.queue.trim()  # any call fetches messages
    places = await within(5, wanting)
    await eventually(lambda: gate.begun == jobs[:2])
    assert places.count == 1
    assert await worker.pending() == 2
    places.release()
    gate.open.set()
    assert await worker.ended(jobs) == {b"done"}


async def test_a_busy_worker_still_recovers_expired_leases(
    make_worker: MakeWorker, worker: WorkerIdentity
) -> None:
    """Its slots are never free for longer than it takes to send a report."""
    handler = Gate()
    busy = make_worker(handler, identity=worker._replace(lease_ms=300), max_inflight=2)
    await busy.group()
    left = await busy.post(2)
    await busy.take(2, "dead")
    stop = asyncio.Event()

    async def keep_busy() -> None:
        while not stop.is_set():
            await busy.post(20)

    filling = asyncio.create_task(keep_busy())
    await eventually(lambda: busy.client.xlen(busy.keys.queue))
    busy.start(recover=True)
    try:
        assert await busy.ended(left) == {b"done"}
    finally:
        stop.set()
        await filling


@pytest.mark.real_redis
async def test_a_retry_is_not_delayed_by_newer_messages(make_worker: MakeWorker) -> None:
    tried: list[int] = []

    async def handler(context: Any, payload: Any) -> None:
        if payload.get("fail") and context.attempt == 1:
            raise TransientError("once")
        tried.append(context.attempt)

    worker = make_worker(handler, max_inflight=1)
    [failing] = await worker.post(payload=b'{"fail":1}')
    jobs = await worker.post(150)
    worker.start()
    assert await worker.settled(failing) == b"done"
    assert tried.index(2) < len(jobs)
    assert await worker.ended(jobs) == {b"done"}


async def test_messages_of_limited_tasks_are_claimed_the_usual_way(make_worker: MakeWorker) -> None:
    """Also if the limit is set at runtime."""
    gate = Gate()
    registry = registry_of(gate, "chat", "embed")
    worker = make_worker(registry=registry, max_inflight=4, task_limits={"embed": 1})
    jobs = []
    for _ in range(6):
        jobs += await worker.post(2, task="chat") + await worker.post(1, task="embed")
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    assert gate.most_by_task["embed"] == 1
    assert gate.most <= 4
    worker.consumer.limits.set_limit(["chat"], 1)
    gate.most_by_task.clear()
    jobs += await worker.post(10)
    assert await worker.ended(jobs) == {b"done"}
    assert gate.most_by_task["chat"] == 1
    assert sorted(gate.begun) == sorted(jobs)


async def test_invalid_messages_in_a_fetch_do_not_stop_others(make_worker: MakeWorker) -> None:
    """They are dead-lettered; a job with a corrupt lease stays pending, and occupies no slot."""
    worker = make_worker(Gate(), max_inflight=2)
    jobs = await worker.post(8)
    await worker.client.xadd(worker.keys.queue, {"nothing": "of ours"})
    gone, corrupt = await worker.post(2)
    await worker.client.delete(worker.keys.job(gone))
    lease = {"attempt": "nan", "token": "t", "deadline_ms": "0"}
    await worker.client.hset(worker.keys.lease(corrupt), mapping=lease)
    jobs += await worker.post(8)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    await eventually(lambda: worker.slots.free == 2)
    reasons = {letter[b"reason"] for letter in await worker.dead_letters()}
    assert reasons == {b"message_without_job_id", b"job_missing_or_expired"}
    assert await worker.pending() == 1


async def test_a_fetch_whose_caller_was_canceled_is_not_repeated(make_worker: MakeWorker) -> None:
    worker = make_worker(Gate())
    await worker.group()
    await worker.post(3)
    _, record = worker.claimer.fetch_record(2, "", {})
    batcher = worker.consumer.batcher
    wire: Any = FaultyConnection(batcher._wire, hangs=False)
    batcher._wire = wire
    left = batcher.submit([record])
    other = batcher.submit([Record("trim", (), ())])
    await eventually(lambda: wire.asked)
    left.cancel()
    wire.open = True
    await within(5, other)
    assert await worker.pending() == 0


@pytest.mark.real_redis
async def test_a_deleted_group_is_created_again(make_worker: MakeWorker) -> None:
    handler = Gate()
    worker = make_worker(handler, max_inflight=2)
    await worker.group()
    jobs = await worker.post(150)
    worker.start()
    await eventually(lambda: len(handler.begun) > 20)
    await worker.client.xgroup_destroy(worker.keys.queue, worker.worker.group)
    assert await worker.ended(jobs) == {b"done"}
    late = await worker.post(5)
    assert await worker.ended(late) == {b"done"}
    assert len(handler.begun) == len(set(handler.begun))


@pytest.mark.real_redis
async def test_a_stopping_worker_prefetches_nothing(make_worker: MakeWorker) -> None:
    handler = Gate()
    worker = make_worker(handler, max_inflight=4)
    jobs = await worker.post(500)
    worker.start()
    await eventually(lambda: len(handler.begun) >= 50)
    await worker.stop(5)
    begun = len(handler.begun)
    assert begun < len(jobs)
    statuses = [(await worker.job(job_id))[b"status"] for job_id in jobs]
    assert statuses.count(b"done") == begun
    assert statuses.count(b"queued") == len(jobs) - begun


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_a_lost_reply_begins_nothing_twice_and_loses_nothing(
    make_worker: MakeWorker, backend: Backend, keys: JobKeys
) -> None:
    handler = Gate()
    worker = make_worker(handler, max_inflight=4)
    jobs = await worker.post(400)
    async with Proxy(str(backend.url)) as proxy:
        connection = PipelinedConnection(proxy.url)
        worker.consumer.batcher._wire = connection
        worker.start()
        for part in range(1, 8):
            await eventually(lambda part=part: len(handler.begun) > 50 * part)  # type: ignore[misc]
            proxy.lose_replies = 1
        assert await worker.ended(jobs) == {b"done"}
        await worker.all_acked()
        await worker.stop(5)
        await connection.aclose()
    assert sorted(handler.begun) == sorted(jobs)
    for job_id in jobs:
        assert await worker.types(job_id) == [b"queued", b"running", b"done"]
