"""A worker for several partitions: slots are shared fairly, and no partition delays another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from common.jobs.store import WorkerIdentity
from common.process.usage import LoopLag
from tests.conftest import eventually
from tests.support.backends import Backend
from tests.worker.partition_kit import Fleet, connections_to, partition_backends
from worker.monitoring.heartbeat import HeartbeatSender
from worker.queue import consumers as consumers_module
from worker.queue import prefetch
from worker.queue.connections import Connections
from worker.queue.messages import Message, parse_message

FleetMaker = Callable[..., Fleet]


class Gate:
    """A handler that counts how many jobs run at once, and holds them while it is closed."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.now = self.most = 0
        self.begun: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, context: Any, payload: Any) -> dict[str, bool]:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.append(context.job_id)
        try:
            await self.open.wait()
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        return {"ok": True}


@pytest.fixture
async def fleet(backend: Backend, worker: WorkerIdentity) -> AsyncIterator[FleetMaker]:
    """Builds workers for partitions on one server of each kind, and closes them."""
    made: list[Fleet] = []
    places: list[Backend] = []

    def make(
        handler: Callable[..., Any],
        count: int = 4,
        *,
        identity: WorkerIdentity = worker,
        **options: Any,
    ) -> Fleet:
        own = partition_backends(backend, count)
        places.extend(own)
        made.append(Fleet(own, handler, worker=identity, **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
    for place in places:
        if place is not backend:
            await place.close()


async def test_all_partitions_are_drained(fleet: FleetMaker) -> None:
    gate = Gate()
    served = fleet(gate)
    jobs = [await served.post(number, 25) for number in range(4)]
    served.start()
    for number, ids in enumerate(jobs):
        await served.all_ended(number, ids)
    assert gate.most <= 4
    await eventually(served.pending_none)
    late = await served.post(3)
    await served.all_ended(3, late)
    assert len(gate.begun) == len(set(gate.begun)) == 101


async def test_no_slot_is_empty_while_any_partition_has_messages(fleet: FleetMaker) -> None:
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, max_inflight=16)
    jobs = await served.post(2, 40)
    served.start()
    await eventually(lambda: gate.now == 16)
    gate.open.set()
    await served.all_ended(2, jobs)
    assert gate.most == 16


async def test_one_job_does_not_wait_for_another_partitions_backlog(
    fleet: FleetMaker,
) -> None:
    gate = Gate(0.01)
    served = fleet(gate)
    await served.post(0, 400)
    served.start()
    await eventually(lambda: len(gate.begun) >= 20)
    before = len(gate.begun)
    [alone] = await served.post(3)
    await eventually(lambda: alone in gate.begun)
    assert gate.begun.index(alone) - before < 100


async def test_backlogs_are_processed_side_by_side(fleet: FleetMaker) -> None:
    gate = Gate(0.01)  # so that both are read before the first 100 have ended
    served = fleet(gate, 3)
    first, second = await served.post(0, 150), await served.post(2, 150)
    served.start()
    await eventually(lambda: len(gate.begun) >= 100)
    begun = set(gate.begun[:100])
    assert min(len(begun & set(first)), len(begun & set(second))) > 30


async def test_every_partition_prefetches_with_its_reports(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While each has a backlog, no reads are needed: reports fetch the next messages."""
    monkeypatch.setattr(prefetch, "REPORT_S", 30.0)  # however slow this machine is
    gate = Gate()
    served = fleet(gate, 2, max_inflight=8)
    jobs = [await served.post(number, 200) for number in range(2)]
    read = [0, 0]
    for number, consumer in enumerate(served.consumers):
        offer = consumer.admission.offer

        def spy(
            messages: list[Message], *, at: int = number, then: Any = offer, **how: Any
        ) -> None:
            read[at] += len(messages)
            then(messages, **how)

        consumer.admission.offer = spy  # type: ignore[method-assign]
    served.start()
    for number, ids in enumerate(jobs):
        # A partition without a job to report waits for the next scan of the recovery, each second.
        await served.all_ended(number, ids, 120.0)
    assert max(read) < 80  # the others were begun in the call that fetched them
    assert gate.most <= 8
    assert len(gate.begun) == len(set(gate.begun)) == 400


async def test_heavier_queues_get_more_and_light_ones_something(fleet: FleetMaker) -> None:
    gate = Gate(0.02)
    served = fleet(gate, 3, weights=[8, 4, 1])
    jobs = [set(await served.post(number, 200)) for number in range(3)]
    served.start()
    await eventually(lambda: len(gate.begun) >= 150)
    high, normal, low = (len(set(gate.begun[:150]) & each) for each in jobs)
    assert high > normal > low > 3


async def test_equal_message_ids_in_two_partitions_are_distinct(
    fleet: FleetMaker,
) -> None:
    """The slots of a task are counted by message."""
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, 2, task_limits={"chat": 2})
    ids = []
    for number in range(2):
        scene = served.scenes[number]
        [job_id] = await served.post(number)
        ids.append(job_id)
        [(_, fields)] = await scene.client.xrange(scene.keys.queue)
        await scene.client.delete(scene.keys.queue)
        await scene.client.xadd(scene.keys.queue, fields, id="7-7")
    served.start()
    await eventually(lambda: gate.now == 2)
    assert [each.running for each in served.consumers.home.limits.here] == [2]
    gate.open.set()
    for number in range(2):
        await served.all_ended(number, [ids[number]])
    await eventually(lambda: [each.running for each in served.consumers.home.limits.here] == [0])


async def test_slots_of_a_task_are_shared_by_all_partitions(fleet: FleetMaker) -> None:
    gate = Gate(0.005)
    served = fleet(gate, 3, task_limits={"chat": 1})
    jobs = [await served.post(number, 8) for number in range(3)]
    served.start()
    for number, ids in enumerate(jobs):
        await served.all_ended(number, ids)
    assert gate.most == 1


async def test_a_message_without_a_slot_is_offered_to_others(
    fleet: FleetMaker, worker: WorkerIdentity
) -> None:
    """Readers of empty queues reserve no slot. A message that they receive while all slots are in
    use must not wait for the end of a long job while other workers are idle."""
    busy, idle = Gate(), Gate()
    busy.open.clear()
    full = fleet(busy, 2, max_inflight=1, block_ms=5000)
    full.start()
    [long] = await full.post(0)
    await eventually(lambda: busy.now == 1)
    short = await read_without_a_slot(full, 1)
    assert full.consumers.deferred == 1
    other = fleet(idle, 2, identity=worker._replace(consumer="c2"))
    other.start()
    await other.all_ended(1, [short])
    assert idle.begun == [short]
    busy.open.set()
    await full.all_ended(0, [long])
    await eventually(lambda: full.consumers.deferred == 0)
    assert busy.begun == [long]


async def read_without_a_slot(served: Fleet, number: int) -> str:
    """Post a job and read its message, whether a reader was waiting in Redis or not. Then wait
    until it is offered to other workers."""
    consumer = list(served.consumers)[number]
    [job_id] = await served.post(number)
    reply: Any = await consumer.connections.writing.execute_command(
        "XREADGROUP", "GROUP", consumer.worker.group, consumer.worker.consumer,
        "COUNT", 1, "STREAMS", consumer.keys.stream, ">",
    )  # fmt: skip
    if reply:
        consumer.admission.offer([parse_message(entry) for entry in reply[0][1]])
    await eventually(lambda: consumer.deferred.offered)
    return job_id


async def test_an_offered_message_not_claimed_gets_the_next_slot(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No slot is given away because this machine stands still.
    monkeypatch.setattr(consumers_module, "RESERVATION_TTL_S", 30.0)
    begun: list[str] = []
    ends = asyncio.Semaphore(0)

    async def handler(context: Any, payload: Any) -> dict[str, bool]:
        begun.append(context.job_id)
        await ends.acquire()
        return {"ok": True}

    served = fleet(handler, 2, max_inflight=1, block_ms=5000)
    served.start()
    many = await served.post(0, 5)
    await eventually(lambda: len(begun) == 1)
    other = await read_without_a_slot(served, 1)
    ends.release()
    await eventually(lambda: len(begun) == 2)
    assert begun[1] == other
    for _ in many:
        ends.release()
    await served.all_ended(0, many)
    await served.all_ended(1, [other])
    assert len(begun) == len(set(begun)) == 6


async def test_slots_are_reserved_in_the_step_that_finds_them(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reader could get them between the check and the reservation."""
    monkeypatch.setattr(consumers_module, "RESERVATION_TTL_S", 30.0)
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, 2, max_inflight=1, block_ms=5000)
    served.start()
    [long] = await served.post(0)
    await eventually(lambda: gate.now == 1)
    short = await read_without_a_slot(served, 1)
    free: list[int] = []
    leave = served.slots.mark_finishing

    def finish_and_watch(task: asyncio.Task[Any] | None) -> None:
        leave(task)
        watch()

    def watch() -> None:  # at every tick of the loop, until the message begins
        if short not in gate.begun:
            free.append(served.slots.free - served.slots.urgent)
            asyncio.get_running_loop().call_soon(watch)

    served.slots.mark_finishing = finish_and_watch  # type: ignore[method-assign]
    gate.open.set()
    await served.all_ended(1, [short])
    assert gate.begun == [long, short]
    assert max(free) <= 0


async def test_a_stopping_worker_releases_messages_of_all_partitions(fleet: FleetMaker) -> None:
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, 3)
    jobs = [await served.post(number, 3) for number in range(3)]
    served.start()
    await eventually(lambda: gate.now == 4)
    await served.stop(0.1)
    for number, ids in enumerate(jobs):
        assert await served.ended(number, ids) == 0
        scene = served.scenes[number]
        rows = await scene.client.xpending_range(scene.keys.queue, "workers", "-", "+", 10)
        assert all(row["time_since_delivered"] >= 30_000 for row in rows)
    gate.open.set()
    next_one = fleet(gate, 3)
    next_one.start()
    for number, ids in enumerate(jobs):
        await next_one.all_ended(number, ids)


async def test_a_cancellation_finds_the_job_in_its_partition(fleet: FleetMaker) -> None:
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, 3)
    served.start()
    [job_id] = await served.post(2)
    await eventually(lambda: gate.now == 1)
    await served.scenes[2].store.cancel(job_id, "workers", b"{}", 600)
    await served.all_ended(2, [job_id])
    assert (await served.scenes[2].job(job_id))[b"status"] == b"canceled"


async def test_one_heartbeat_covers_all_partitions(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "READING_S", 30.0)
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, 3, max_inflight=2)
    home = served.scenes[0]
    for number in range(3):
        await served.post(number, 3)
    served.start()
    await eventually(lambda: gate.now == 2)
    beat = await HeartbeatSender(served.consumers, home.keys, 5.0, LoopLag()).run_once()
    assert (beat.in_flight, beat.max_inflight, len(beat.running)) == (2, 2, 2)
    assert beat.queue.length == 9
    assert await home.client.zrange(home.keys.workers, 0, -1) == [b"c1"]
    other = served.scenes[1]
    assert not await other.client.exists(other.keys.workers)
    gate.open.set()


class UnavailableConnection:
    """A connection to a server that never replies, or refuses every command."""

    ready = False

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs

    def send(self, args: Any, on_reply: Any) -> None:
        raise AssertionError("never ready")

    async def execute_command(self, *args: Any) -> Any:
        if self._hangs:
            await asyncio.Event().wait()
        raise RedisConnectionError("away")

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refusing"])
async def test_an_unavailable_server_does_not_delay_other_partitions(
    fleet: FleetMaker, backend: Backend, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "READING_S", 0.1)
    wire: Any = UnavailableConnection(hangs)
    real = connections_to(backend)
    away = Connections(real.client, wire, wire, real.renewing)
    gate = Gate(0.001)
    served = fleet(gate, 3, connections={1: away})
    jobs = await served.post(0, 100), await served.post(2, 100)
    served.start()
    await served.all_ended(0, jobs[0])
    await served.all_ended(2, jobs[1])
    assert gate.most == 4
    assert served.consumers.leases_healthy
    await eventually(lambda: served.slots.free == 4)


async def test_reserved_slots_of_an_unresponsive_server_go_to_others(
    fleet: FleetMaker, backend: Backend
) -> None:
    """It does not reply to a read, or to BEGIN."""
    real = connections_to(partition_backends(backend, 2)[1])
    hole = LossyConnection(real.writing)
    wire: Any = hole
    gate = Gate(0.001)
    served = fleet(
        gate, 2, connections={1: Connections(real.client, wire, real.reading, real.renewing)}
    )
    stuck = await served.post(1, 8)
    hole.open = False
    served.start()
    await eventually(lambda: hole.swallowed)
    jobs = await served.post(0, 50)
    await served.all_ended(0, jobs)
    hole.open = True
    hole.fail()
    await served.all_ended(1, stuck)
    assert gate.most == 4
    assert len(set(gate.begun)) == 58


class LossyConnection:
    """A connection whose commands are lost while it is not open."""

    ready = False

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.open = True
        self.swallowed: list[asyncio.Future[Any]] = []

    def send(self, args: Any, on_reply: Any) -> None:
        raise AssertionError("never ready")

    async def execute_command(self, *args: Any) -> Any:
        if not self.open:
            lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.swallowed.append(lost)
            await lost
        return await self._wire.execute_command(*args)

    def fail(self) -> None:
        """The connection is closed with an error."""
        lost, self.swallowed = self.swallowed, []
        for each in lost:
            if not each.done():
                each.set_exception(RedisConnectionError("lost"))

    async def aclose(self) -> None:
        await self._wire.aclose()
