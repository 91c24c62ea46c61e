"""A worker for several partitions: slots are shared fairly, and no partition delays another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sluice.common.jobs.store import WorkerIdentity
from sluice.common.process.usage import LoopLag
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.outcome import WorkerDefaults
from sluice.worker.main import build_capacity, build_identity
from sluice.worker.monitoring.heartbeat import HeartbeatSender
from sluice.worker.queue import connections, prefetch
from sluice.worker.queue import consumers as consumers_module
from sluice.worker.queue.connections import Connections
from sluice.worker.queue.messages import Message, parse_message
from sluice.worker.registry import Registry
from tests.support.servers import Backend
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import connections_to
from tests.support.worker.partitions import FaultyConnection, PartitionedWorker, partition_backends

MakeWorker = Callable[..., PartitionedWorker]


@pytest.fixture
async def partitioned(backend: Backend, worker: WorkerIdentity) -> AsyncIterator[MakeWorker]:
    """Builds workers for partitions on one server of each kind, and closes them."""
    made: list[PartitionedWorker] = []
    places: list[Backend] = []

    def make(
        handler: Callable[..., Any],
        count: int = 4,
        *,
        identity: WorkerIdentity = worker,
        **options: Any,
    ) -> PartitionedWorker:
        own = partition_backends(backend, count)
        places.extend(own)
        made.append(PartitionedWorker(own, handler, worker=identity, **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
    for place in places:
        if place is not backend:
            await place.close()


async def test_all_partitions_are_drained(partitioned: MakeWorker) -> None:
    """No slot is empty while any partition has messages."""
    gate = Gate(closed=True)
    worker = partitioned(gate, max_inflight=8)
    jobs = [await worker.post(0, 3), [], await worker.post(2, 15), []]
    worker.start()
    await eventually(lambda: gate.now == 8)
    gate.open.set()
    jobs[3] = await worker.post(3)
    for number, ids in enumerate(jobs):
        await worker.all_ended(number, ids)
    assert gate.most == 8
    await eventually(worker.pending_none)
    assert len(gate.begun) == len(set(gate.begun)) == 19


@pytest.mark.slow("waits for scans of the recovery")
@pytest.mark.real_redis
async def test_every_partition_prefetches_with_its_reports(
    partitioned: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While each has a backlog, no reads are needed: reports fetch the next messages."""
    monkeypatch.setattr(prefetch, "REPORT_S", 30.0)  # however slow this machine is
    gate = Gate()
    worker = partitioned(gate, 2, max_inflight=8)
    jobs = [await worker.post(number, 100) for number in range(2)]
    read = [0, 0]
    for number, consumer in enumerate(worker.consumers):
        offer = consumer.admission.offer

        def spy(
            messages: list[Message], *, at: int = number, then: Any = offer, **how: Any
        ) -> None:
            read[at] += len(messages)
            then(messages, **how)

        consumer.admission.offer = spy  # type: ignore[method-assign]
    worker.start()
    for number, ids in enumerate(jobs):
        # A partition without a job to report waits for the next scan of the recovery, each second.
        await worker.all_ended(number, ids, 120.0)
    assert max(read) < 60  # the others were begun in the call that fetched them
    assert gate.most <= 8
    assert len(gate.begun) == len(set(gate.begun)) == 200


@pytest.mark.real_redis
async def test_one_job_does_not_wait_for_another_partitions_backlog(
    partitioned: MakeWorker,
) -> None:
    gate = Gate(0.01)
    worker = partitioned(gate)
    await worker.post(0, 200)
    worker.start()
    await eventually(lambda: len(gate.begun) >= 20)
    before = len(gate.begun)
    [alone] = await worker.post(3)
    await eventually(lambda: alone in gate.begun)
    assert gate.begun.index(alone) - before < 100


async def test_equal_message_ids_in_two_partitions_are_distinct(partitioned: MakeWorker) -> None:
    """The slots of a task are counted by message."""
    gate = Gate(closed=True)
    worker = partitioned(gate, 2, task_limits={"chat": 2})
    ids = []
    for number in range(2):
        harness = worker.stores[number]
        [job_id] = await worker.post(number)
        ids.append(job_id)
        [(_, fields)] = await harness.client.xrange(harness.keys.queue)
        await harness.client.delete(harness.keys.queue)
        await harness.client.xadd(harness.keys.queue, fields, id="7-7")
    worker.start()
    await eventually(lambda: gate.now == 2)
    assert [each.running for each in worker.consumers.home.limits.here] == [2]
    gate.open.set()
    for number in range(2):
        await worker.all_ended(number, [ids[number]])
    await eventually(lambda: [each.running for each in worker.consumers.home.limits.here] == [0])


async def test_slots_of_a_task_are_shared_by_all_partitions(partitioned: MakeWorker) -> None:
    gate = Gate(0.005)
    worker = partitioned(gate, 3, task_limits={"chat": 1})
    jobs = [await worker.post(number, 4) for number in range(3)]
    worker.start()
    for number, ids in enumerate(jobs):
        await worker.all_ended(number, ids)
    assert gate.most == 1


async def test_a_message_without_a_slot_is_offered_to_others(
    partitioned: MakeWorker, worker: WorkerIdentity
) -> None:
    """Readers of empty queues reserve no slot. A message that they receive while all slots are in
    use must not wait for the end of a long job while other workers are idle."""
    busy, idle = Gate(closed=True), Gate()
    full = partitioned(busy, 2, max_inflight=1, block_ms=5000)
    full.start()
    [long] = await full.post(0)
    await eventually(lambda: busy.now == 1)
    short = await read_without_a_slot(full, 1)
    assert full.consumers.deferred == 1
    other = partitioned(idle, 2, identity=worker._replace(consumer="c2"))
    other.start()
    await other.all_ended(1, [short])
    assert idle.begun == [short]
    busy.open.set()
    await full.all_ended(0, [long])
    await eventually(lambda: full.consumers.deferred == 0)
    assert busy.begun == [long]


async def read_without_a_slot(worker: PartitionedWorker, number: int) -> str:
    """Post a job and read its message, whether a reader was waiting in Redis or not. Then wait
    until it is offered to other workers."""
    consumer = list(worker.consumers)[number]
    [job_id] = await worker.post(number)
    reply: Any = await consumer.connections.writing.execute_command(
        "XREADGROUP", "GROUP", consumer.worker.group, consumer.worker.consumer,
        "COUNT", 1, "STREAMS", consumer.keys.stream, ">",
    )  # fmt: skip
    if reply:
        consumer.admission.offer([parse_message(entry) for entry in reply[0][1]])
    await eventually(lambda: consumer.deferred.offered)
    return job_id


async def test_an_offered_message_not_claimed_gets_the_next_slot(
    partitioned: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No slot is given away because this machine stands still.
    monkeypatch.setattr(consumers_module, "RESERVATION_TTL_S", 30.0)
    begun: list[str] = []
    ends = asyncio.Semaphore(0)

    async def handler(context: Any, payload: Any) -> dict[str, bool]:
        begun.append(context.job_id)
        await ends.acquire()
        return {"ok": True}

    worker = partitioned(handler, 2, max_inflight=1, block_ms=5000)
    worker.start()
    many = await worker.post(0, 5)
    await eventually(lambda: len(begun) == 1)
    other = await read_without_a_slot(worker, 1)
    ends.release()
    await eventually(lambda: len(begun) == 2)
    assert begun[1] == other
    for _ in many:
        ends.release()
    await worker.all_ended(0, many)
    await worker.all_ended(1, [other])
    assert len(begun) == len(set(begun)) == 6


async def test_slots_are_reserved_in_the_step_that_finds_them(
    partitioned: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reader could get them between the check and the reservation."""
    monkeypatch.setattr(consumers_module, "RESERVATION_TTL_S", 30.0)
    gate = Gate(closed=True)
    worker = partitioned(gate, 2, max_inflight=1, block_ms=5000)
    worker.start()
    [long] = await worker.post(0)
    await eventually(lambda: gate.now == 1)
    short = await read_without_a_slot(worker, 1)
    free: list[int] = []
    leave = worker.slots.mark_finishing

    def finish_and_watch(task: asyncio.Task[Any] | None) -> None:
        leave(task)
        watch()

    def watch() -> None:  # at every tick of the loop, until the message begins
        if short not in gate.begun:
            free.append(worker.slots.free - worker.slots.urgent)
            asyncio.get_running_loop().call_soon(watch)

    worker.slots.mark_finishing = finish_and_watch  # type: ignore[method-assign]
    gate.open.set()
    await worker.all_ended(1, [short])
    assert gate.begun == [long, short]
    assert max(free) <= 0


async def test_a_stopping_worker_releases_messages_of_all_partitions(
    partitioned: MakeWorker,
) -> None:
    gate = Gate(closed=True)
    worker = partitioned(gate, 3)
    jobs = [await worker.post(number, 3) for number in range(3)]
    worker.start()
    await eventually(lambda: gate.now == 4)
    await worker.stop(0.1)
    for number, ids in enumerate(jobs):
        assert await worker.ended(number, ids) == 0
        harness = worker.stores[number]
        rows = await harness.client.xpending_range(harness.keys.queue, "workers", "-", "+", 10)
        assert all(row["time_since_delivered"] >= 30_000 for row in rows)
    gate.open.set()
    next_one = partitioned(gate, 3)
    next_one.start()
    for number, ids in enumerate(jobs):
        await next_one.all_ended(number, ids)


async def test_cancel_and_heartbeat_of_a_worker_for_all_partitions(
    partitioned: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "READING_S", 30.0)
    gate = Gate(closed=True)
    worker = partitioned(gate, 3, max_inflight=2)
    for number in range(3):
        await worker.post(number, 3)
    worker.start()
    await eventually(lambda: gate.now == 2)
    home, other, _ = worker.stores
    beat = await HeartbeatSender(worker.consumers, home.keys, 5.0, LoopLag()).run_once()
    assert (beat.in_flight, beat.max_inflight, len(beat.running)) == (2, 2, 2)
    assert beat.queue.length == 9
    assert await home.client.zrange(home.keys.workers, 0, -1) == [b"c1"]
    assert not await other.client.exists(other.keys.workers)
    running = list(gate.begun)
    for job_id in running:
        for store in worker.stores:
            await store.store.cancel(job_id, "workers", b"{}", 600)
    await eventually(lambda: len(gate.begun) == 4)  # the slots of both are free again
    for job_id in running:
        records = [await store.job(job_id) for store in worker.stores]
        assert [record[b"status"] for record in records if record] == [b"canceled"]
    gate.open.set()


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refusing"])
async def test_an_unavailable_server_does_not_delay_other_partitions(
    partitioned: MakeWorker, backend: Backend, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "READING_S", 0.1)
    monkeypatch.setattr("sluice.worker.monitoring.shutdown.RELEASE_MESSAGES_S", 0.1)
    wire: Any = FaultyConnection(hangs=hangs)
    real = connections_to(backend)
    away = Connections(real.client, wire, wire, real.renewing)
    gate = Gate(0.001)
    worker = partitioned(gate, 3, connections={1: away})
    jobs = await worker.post(0, 10), await worker.post(2, 10)
    worker.start()
    await worker.all_ended(0, jobs[0])
    await worker.all_ended(2, jobs[1])
    assert gate.most == 4
    assert worker.consumers.leases_healthy
    await eventually(lambda: worker.slots.free == 4)
    await worker.stop(0.1)


async def test_reserved_slots_of_an_unresponsive_server_go_to_others(
    partitioned: MakeWorker, backend: Backend
) -> None:
    """It does not reply to a read, or to BEGIN."""
    real = connections_to(partition_backends(backend, 2)[1])
    wire: Any = FaultyConnection(real.writing, hangs=True)
    wire.open = True
    gate = Gate(0.001)
    worker = partitioned(
        gate, 2, connections={1: Connections(real.client, wire, real.reading, real.renewing)}
    )
    stuck = await worker.post(1, 8)
    wire.open = False
    worker.start()
    await eventually(lambda: wire.swallowed)
    jobs = await worker.post(0, 20)
    await worker.all_ended(0, jobs)
    wire.open = True
    wire.fail()
    await worker.all_ended(1, stuck)
    assert gate.most == 4
    assert len(set(gate.begun)) == 28


@pytest.mark.parametrize(("allowed", "warned"), [(100_000, False), (1024, True)])
async def test_the_file_limit_is_raised_for_all_queues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, allowed: int, warned: bool
) -> None:
    wanted: list[int] = []

    def raise_file_limit(count: int) -> int:
        wanted.append(count)
        return allowed

    monkeypatch.setattr(connections, "raise_file_limit", raise_file_limit)
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1", queue_partitions=256)
    consumers_module.build_consumers(
        *(settings, str(settings.redis_url), Registry()),
        build_identity(settings),
        build_capacity(settings),
        WorkerDefaults.from_settings(settings),
    )
    assert wanted[0] >= 256 * 5
    assert ("may open only 1024 files, but 256 queues" in caplog.text) is warned
