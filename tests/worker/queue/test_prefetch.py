"""Prefetch: while there is a backlog, reports also fetch the next messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from common.redis.pipelined import PipelinedConnection
from common.redis.scripts import Record
from tests.common.kit import Proxy
from tests.conftest import eventually
from tests.support.backends import Backend
from tests.worker.kit import Rig, RigMaker, registry_of, within
from worker.errors import TransientError


class Counting:
    """A handler that takes one tick of the loop, and counts runs and concurrent runs."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.begun: list[str] = []

    async def run(self, context: Any, payload: Any) -> dict[str, int]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.begun.append(context.job_id)
        await asyncio.sleep(0)
        self.inside -= 1
        return {"attempt": context.attempt}


def reads_of(rig: Rig) -> list[int]:
    """The number of messages of each read from now on, without empty reads."""
    counts: list[int] = []
    read = rig.reader._read

    async def spy(count: int, **how: Any) -> Any:
        messages = await read(count, **how)
        counts.extend([len(messages)] if messages else [])
        return messages

    rig.reader._read = spy  # type: ignore[method-assign]
    return counts


async def test_a_backlog_is_processed_with_few_reads(rig: RigMaker) -> None:
    handler = Counting()
    worker = rig(handler.run, max_inflight=4)
    await worker.group()
    jobs = await worker.post(200)
    reads = reads_of(worker)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    await worker.all_acked()
    assert len(reads) < 20  # without prefetch it would be 50
    assert handler.most <= 4
    assert sorted(handler.begun) == sorted(jobs)
    for job_id in (jobs[0], jobs[100], jobs[-1]):
        assert await worker.types(job_id) == [b"queued", b"running", b"done"]


async def test_never_more_messages_are_pending_than_slots(rig: RigMaker) -> None:
    handler = Counting()
    worker = rig(handler.run, max_inflight=5, count=3)
    await worker.group()
    jobs = await worker.post(100)
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


async def test_a_new_message_after_the_backlog_does_not_wait(rig: RigMaker) -> None:
    worker = rig(Counting().run, max_inflight=4, block_ms=5000)
    await worker.group()
    jobs = await worker.post(50)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    for _ in range(3):
        [late] = await worker.post(1)
        assert await within(4, worker.settled(late)) == b"done"


async def test_slots_for_messages_read_before_are_not_used(rig: RigMaker) -> None:
    begun: list[str] = []
    go_on = asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        begun.append(context.job_id)
        await go_on.wait()

    worker = rig(handler, max_inflight=3)
    await worker.group()
    jobs = await worker.post(3)
    worker.consumer.prefetch.active = True
    worker.slots.add_reserved(3)
    wanting = asyncio.create_task(worker.slots.reserve_free(1))  # as a caller with messages does
    await asyncio.sleep(0)
    worker.slots.remove_reserved(3)
    await worker.consumer.queue.trim()  # any call fetches messages
    places = await within(5, wanting)
    await eventually(lambda: begun == jobs[:2])
    assert places.count == 1
    assert await worker.pending() == 2
    places.release()
    go_on.set()
    assert await worker.ended(jobs) == {b"done"}


async def test_a_busy_worker_still_recovers_expired_leases(
    rig: RigMaker, worker: WorkerIdentity
) -> None:
    """Its slots are never free for longer than it takes to send a report."""
    handler = Counting()
    busy = rig(handler.run, identity=worker._replace(lease_ms=300), max_inflight=2)
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


async def test_a_retry_is_not_delayed_by_newer_messages(rig: RigMaker) -> None:
    tried: list[int] = []

    async def handler(context: Any, payload: Any) -> None:
        if payload.get("fail") and context.attempt == 1:
            raise TransientError("once")
        tried.append(context.attempt)

    worker = rig(handler, max_inflight=1)
    await worker.group()
    [failing] = await worker.post(payload=b'{"fail":1}')
    jobs = await worker.post(300)
    worker.start()
    assert await worker.settled(failing) == b"done"
    assert tried.index(2) < len(jobs)
    assert await worker.ended(jobs) == {b"done"}


async def test_messages_of_limited_tasks_are_claimed_the_usual_way(rig: RigMaker) -> None:
    handler = Counting()
    limited = Counting()
    registry = registry_of(handler.run)
    registry.add("embed", limited.run)
    worker = rig(registry=registry, max_inflight=4, task_limits={"embed": 1})
    await worker.group()
    jobs = []
    for _ in range(30):
        jobs += await worker.post(2, task="chat")
        jobs += await worker.post(1, task="embed")
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    assert limited.most == 1
    assert handler.most <= 4
    assert sorted(handler.begun + limited.begun) == sorted(jobs)


async def test_limits_set_at_runtime_are_respected(rig: RigMaker) -> None:
    handler = Counting()
    worker = rig(handler.run, max_inflight=4)
    await worker.group()
    jobs = await worker.post(40)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    worker.consumer.limits.set_limit(["chat"], 1)
    handler.most = 0
    jobs = await worker.post(40)
    assert await worker.ended(jobs) == {b"done"}
    assert handler.most == 1


async def test_invalid_messages_in_a_fetch_are_dead_lettered(rig: RigMaker) -> None:
    worker = rig(Counting().run, max_inflight=2)
    await worker.group()
    jobs = await worker.post(20)
    await worker.client.xadd(worker.keys.queue, {"nothing": "of ours"})
    gone = (await worker.post(1))[0]
    await worker.client.delete(worker.keys.job(gone))
    jobs += await worker.post(20)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    await worker.all_acked()
    reasons = {letter[b"reason"] for letter in await worker.dead_letters()}
    assert reasons == {b"message_without_job_id", b"job_missing_or_expired"}


async def test_a_corrupt_lease_occupies_no_slot(rig: RigMaker) -> None:
    """Its number of attempts is not a number: the job stays pending, the others run."""
    worker = rig(Counting().run, max_inflight=2)
    await worker.group()
    jobs = await worker.post(8)
    [spoilt] = await worker.post()
    lease = {"attempt": "nan", "token": "t", "deadline_ms": "0"}
    await worker.client.hset(worker.keys.lease(spoilt), mapping=lease)
    jobs += await worker.post(8)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    await eventually(lambda: worker.slots.free == 2)


async def test_a_fetch_whose_caller_was_canceled_is_not_repeated(
    rig: RigMaker,
) -> None:
    worker = rig(Counting().run)
    await worker.group()
    await worker.post(3)
    _, record = worker.claimer.fetch_record(2, "", {})
    batcher = worker.consumer.batcher
    wire: Any = FlakyConnection(batcher._wire)
    batcher._wire = wire
    left = batcher.submit([record])
    other = batcher.submit([Record("trim", (), ())])
    await eventually(lambda: wire.asked)
    left.cancel()
    wire.away = False
    await within(5, other)
    assert await worker.pending() == 0


class FlakyConnection:
    """A connection to a server that is unavailable for a while."""

    ready = False

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.away = True
        self.asked = 0

    async def execute_command(self, *args: Any) -> Any:
        self.asked += 1
        if self.away:
            raise ConnectionError("away")
        return await self._wire.execute_command(*args)

    async def aclose(self) -> None:
        await self._wire.aclose()


async def test_a_deleted_group_is_created_again(rig: RigMaker) -> None:
    handler = Counting()
    worker = rig(handler.run, max_inflight=2)
    await worker.group()
    jobs = await worker.post(300)
    worker.start()
    await eventually(lambda: len(handler.begun) > 20)
    await worker.client.xgroup_destroy(worker.keys.queue, worker.worker.group)
    assert await worker.ended(jobs) == {b"done"}
    late = await worker.post(5)
    assert await worker.ended(late) == {b"done"}
    assert len(handler.begun) == len(set(handler.begun))


async def test_a_stopping_worker_prefetches_nothing(rig: RigMaker) -> None:
    handler = Counting()
    worker = rig(handler.run, max_inflight=4)
    await worker.group()
    jobs = await worker.post(500)
    worker.start()
    await eventually(lambda: len(handler.begun) >= 50)
    await worker.stop(5)
    begun = len(handler.begun)
    assert begun < len(jobs)
    statuses = [(await worker.job(job_id))[b"status"] for job_id in jobs]
    assert statuses.count(b"done") == begun
    assert statuses.count(b"queued") == len(jobs) - begun


@pytest.mark.one_server
async def test_a_lost_reply_begins_nothing_twice_and_loses_nothing(
    real_rig: RigMaker, real_backend: Backend, keys: JobKeys
) -> None:
    handler = Counting()
    worker = real_rig(handler.run, max_inflight=4)
    await worker.group()
    jobs = await worker.post(400)
    async with Proxy(str(real_backend.url)) as proxy:
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
