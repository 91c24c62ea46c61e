"""A worker that serves several partitions: fair, and none of them holds up the others."""

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
from tests.worker.partition_kit import Fleet, lines_to, places_of
from worker.monitoring.heartbeat import HeartbeatSender
from worker.queue import consumers as crews_module
from worker.queue import prefetch
from worker.queue.connections import Connections
from worker.queue.messages import Message, parse_message

FleetMaker = Callable[..., Fleet]


class Gate:
    """A handler that tells how many of it run at once, and holds jobs while it is shut."""

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
    """Makes workers for partitions of one server of every kind, and closes them."""
    made: list[Fleet] = []
    places: list[Backend] = []

    def make(
        handler: Callable[..., Any],
        count: int = 4,
        *,
        identity: WorkerIdentity = worker,
        **options: Any,
    ) -> Fleet:
        own = places_of(backend, count)
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


async def test_no_place_is_empty_while_any_partition_has_work(fleet: FleetMaker) -> None:
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, max_inflight=16)
    jobs = await served.post(2, 40)
    served.start()
    await eventually(lambda: gate.now == 16)
    gate.open.set()
    await served.all_ended(2, jobs)
    assert gate.most == 16


async def test_one_job_does_not_wait_for_the_end_of_another_partition_s_backlog(
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


async def test_backlogs_are_worked_off_side_by_side(fleet: FleetMaker) -> None:
    gate = Gate(0.01)  # so that both have been read before the first 100 are over
    served = fleet(gate, 3)
    first, second = await served.post(0, 150), await served.post(2, 150)
    served.start()
    await eventually(lambda: len(gate.begun) >= 100)
    begun = set(gate.begun[:100])
    assert min(len(begun & set(first)), len(begun & set(second))) > 30


async def test_messages_come_along_with_reports_in_every_partition(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each has its backlog, nobody has to read: what ends jobs begins others."""
    monkeypatch.setattr(prefetch, "REPORT_S", 30.0)  # however slow this machine is
    gate = Gate()
    served = fleet(gate, 2, max_inflight=8)
    jobs = [await served.post(number, 200) for number in range(2)]
    read = [0, 0]
    for number, crew in enumerate(served.consumers):
        offer = crew.admission.offer

        def spy(
            messages: list[Message], *, at: int = number, then: Any = offer, **how: Any
        ) -> None:
            read[at] += len(messages)
            then(messages, **how)

        crew.admission.offer = spy  # type: ignore[method-assign]
    served.start()
    for number, ids in enumerate(jobs):
        # Who has no job left to report waits for the next look at silent workers, each second.
        await served.all_ended(number, ids, 120.0)
    assert max(read) < 80  # the others were begun in the call that took them
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


async def test_messages_of_one_name_in_two_partitions_are_two(fleet: FleetMaker) -> None:
    """Where places of a task are counted, they are counted by message."""
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


async def test_places_of_a_task_are_shared_by_all_partitions(fleet: FleetMaker) -> None:
    gate = Gate(0.005)
    served = fleet(gate, 3, task_limits={"chat": 1})
    jobs = [await served.post(number, 8) for number in range(3)]
    served.start()
    for number, ids in enumerate(jobs):
        await served.all_ended(number, ids)
    assert gate.most == 1


async def test_a_message_that_was_taken_without_a_place_is_anybody_s(
    fleet: FleetMaker, worker: WorkerIdentity
) -> None:
    """Readers of empty queues hold no place: what they are given meanwhile must not wait here for
    the end of a long job while other workers have nothing to do."""
    busy, idle = Gate(), Gate()
    busy.open.clear()
    full = fleet(busy, 2, max_inflight=1, block_ms=5000)
    full.start()
    [long] = await full.post(0)
    await eventually(lambda: busy.now == 1)
    short = await in_hand_without_a_place(full, 1)
    assert full.consumers.deferred == 1
    other = fleet(idle, 2, identity=worker._replace(consumer="c2"))
    other.start()
    await other.all_ended(1, [short])
    assert idle.begun == [short]
    busy.open.set()
    await full.all_ended(0, [long])
    await eventually(lambda: full.consumers.deferred == 0)
    assert busy.begun == [long]


async def in_hand_without_a_place(served: Fleet, number: int) -> str:
    """Post a job and have its message taken, whether a reader was waiting in Redis or not; then
    wait until it is offered to other workers."""
    crew = list(served.consumers)[number]
    [job_id] = await served.post(number)
    reply: Any = await crew.connections.writing.execute_command(
        "XREADGROUP", "GROUP", crew.worker.group, crew.worker.consumer,
        "COUNT", 1, "STREAMS", crew.keys.stream, ">",
    )  # fmt: skip
    if reply:
        crew.admission.offer([parse_message(entry) for entry in reply[0][1]])
    await eventually(lambda: crew.deferred.offered)
    return job_id


async def test_a_message_that_nobody_else_wants_gets_the_next_place(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No slot is given away because this machine stands still.
    monkeypatch.setattr(crews_module, "RESERVATION_TTL_S", 30.0)
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
    other = await in_hand_without_a_place(served, 1)
    ends.release()
    await eventually(lambda: len(begun) == 2)
    assert begun[1] == other
    for _ in many:
        ends.release()
    await served.all_ended(0, many)
    await served.all_ended(1, [other])
    assert len(begun) == len(set(begun)) == 6


async def test_places_are_held_in_the_step_that_finds_them(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a reader that asks between the finding and the holding gets them too."""
    monkeypatch.setattr(crews_module, "RESERVATION_TTL_S", 30.0)
    gate = Gate()
    gate.open.clear()
    served = fleet(gate, 2, max_inflight=1, block_ms=5000)
    served.start()
    [long] = await served.post(0)
    await eventually(lambda: gate.now == 1)
    short = await in_hand_without_a_place(served, 1)
    free: list[int] = []
    leave = served.slots.mark_finishing

    def leave_and_look(task: asyncio.Task[Any] | None) -> None:
        leave(task)
        look_on()

    def look_on() -> None:  # at every turn of the loop, until the message begins
        if short not in gate.begun:
            free.append(served.slots.free - served.slots.urgent)
            asyncio.get_running_loop().call_soon(look_on)

    served.slots.mark_finishing = leave_and_look  # type: ignore[method-assign]
    gate.open.set()
    await served.all_ended(1, [short])
    assert gate.begun == [long, short]
    assert max(free) <= 0


async def test_a_stopping_worker_hands_back_what_is_in_hand_everywhere(fleet: FleetMaker) -> None:
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


async def test_one_sign_of_life_tells_of_all(
    fleet: FleetMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews_module, "READING_S", 30.0)
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


class AwayWire:
    """A line to a server that takes everything and answers nothing, or refuses it all."""

    ready = False

    def __init__(self, silent: bool) -> None:
        self._silent = silent

    def send(self, args: Any, on_reply: Any) -> None:
        raise AssertionError("never ready")

    async def execute_command(self, *args: Any) -> Any:
        if self._silent:
            await asyncio.Event().wait()
        raise RedisConnectionError("away")

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refusing"])
async def test_a_server_that_is_away_holds_up_nobody_else(
    fleet: FleetMaker, backend: Backend, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews_module, "READING_S", 0.1)
    wire: Any = AwayWire(silent)
    real = lines_to(backend)
    away = Connections(real.client, wire, wire, real.renewing)
    gate = Gate(0.001)
    served = fleet(gate, 3, lines={1: away})
    jobs = await served.post(0, 100), await served.post(2, 100)
    served.start()
    await served.all_ended(0, jobs[0])
    await served.all_ended(2, jobs[1])
    assert gate.most == 4
    assert served.consumers.leases_healthy
    await eventually(lambda: served.slots.free == 4)


async def test_places_held_for_a_server_that_falls_silent_are_given_to_others(
    fleet: FleetMaker, backend: Backend
) -> None:
    """It was asked for messages, or to begin jobs, and does not answer."""
    real = lines_to(places_of(backend, 2)[1])
    hole = HoleWire(real.writing)
    wire: Any = hole
    gate = Gate(0.001)
    served = fleet(gate, 2, lines={1: Connections(real.client, wire, real.reading, real.renewing)})
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


class HoleWire:
    """A line whose commands get lost while it is not open."""

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
        """The connection is found dead at last."""
        lost, self.swallowed = self.swallowed, []
        for each in lost:
            if not each.done():
                each.set_exception(RedisConnectionError("lost"))

    async def aclose(self) -> None:
        await self._wire.aclose()
