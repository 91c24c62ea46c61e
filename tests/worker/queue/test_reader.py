"""The reader and its slots: never more messages than can run, and errors are retried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import exceptions
from redis.exceptions import ResponseError

import worker.queue.reader
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker, within
from worker.monitoring.shutdown import drain
from worker.queue.slots import Slots


class SpyConnection:
    """A reader's connection that records how many messages each read asked for."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.counts: list[int] = []
        self.commands = 0
        self.faults: list[Exception] = []

    async def execute_command(self, *args: Any) -> Any:
        self.commands += 1
        if args[0] == "XREADGROUP":
            self.counts.append(int(args[args.index("COUNT") + 1]))
            if self.faults:
                raise self.faults.pop(0)
        return await self._connection.execute_command(*args)

    async def aclose(self) -> None:
        await self._connection.aclose()


class Gate:
    """A handler that waits until it is released, and counts the waiting jobs."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.open = asyncio.Event()

    async def __call__(self, context: Any, payload: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1


def gated() -> tuple[Gate, Any]:
    gate = Gate()

    async def handler(context: Any, payload: Any) -> None:
        await gate(context, payload)

    return gate, handler


async def test_never_more_messages_than_free_slots_are_read(rig: RigMaker) -> None:
    gate, handler = gated()
    worker = rig(handler, max_inflight=5, count=3)
    spy = worker.reader._connection = SpyConnection(worker.reader._connection)
    await worker.group()
    await worker.post(20)
    worker.start()
    await eventually(lambda: gate.inside == 5)
    assert spy.counts == [3, 2]
    assert await worker.pending() == 5
    gate.open.set()

    async def all_done() -> bool:
        return (await worker.store.counts()).ended == 20

    await eventually(all_done)
    await worker.stop()
    assert gate.most == 5
    assert max(spy.counts) == 3
    assert await worker.pending() == 0


async def test_messages_older_than_the_group_are_read(rig: RigMaker) -> None:
    worker = rig()
    jobs = await worker.post(3)
    worker.start()
    for job_id in jobs:
        assert await worker.settled(job_id) == b"done"


async def test_a_deleted_group_is_created_again_from_the_beginning(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.queue.reader, "_FIRST_BACKOFF_S", 0.01)
    taker = rig()
    taker.start()
    [first] = await taker.post()
    await taker.settled(first)
    await taker.client.delete(taker.keys.queue)
    [second] = await taker.post()
    assert await taker.settled(second) == b"done"
    await taker.client.flushdb()
    [third] = await taker.post()
    assert await taker.settled(third) == b"done"
    assert await taker.pending() == 0


async def test_errors_of_redis_are_retried(rig: RigMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.queue.reader, "_FIRST_BACKOFF_S", 0.001)
    taker = rig()
    spy = taker.reader._connection = SpyConnection(taker.reader._connection)
    spy.faults = [
        exceptions.ConnectionError("away"),
        ResponseError("LOADING"),
        OSError("broken pipe"),
        ResponseError("WRONGTYPE"),
        ResponseError("BUSY"),
    ]
    taker.start()
    [job_id] = await taker.post()
    assert await taker.settled(job_id) == b"done"
    assert not spy.faults


async def test_a_queue_of_another_type_is_retried(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.queue.reader, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(worker.queue.reader, "MAX_BACKOFF_S", 0.05)
    taker = rig()
    spy = taker.reader._connection = SpyConnection(taker.reader._connection)
    await taker.client.set(taker.keys.queue, "a string")
    taker.start()
    await eventually(lambda: spy.commands > 3)
    await taker.client.delete(taker.keys.queue)
    [job_id] = await taker.post()
    assert await taker.settled(job_id) == b"done"


async def test_stop_lets_running_jobs_finish(rig: RigMaker) -> None:
    gate, handler = gated()
    worker = rig(handler, max_inflight=2)
    worker.start()
    jobs = await worker.post(2)
    await eventually(lambda: gate.inside == 2)
    stopping = asyncio.create_task(worker.stop(10))
    await asyncio.sleep(0)
    await worker.post()
    gate.open.set()
    await asyncio.wait_for(stopping, 10)
    for job_id in jobs:
        assert (await worker.job(job_id))[b"status"] == b"done"


@pytest.mark.parametrize("max_inflight", [1, 2], ids=["all-busy", "one-free"])
async def test_stop_releases_jobs_that_do_not_finish_in_time(
    rig: RigMaker, max_inflight: int
) -> None:
    """Also when every slot is busy and the reader waits for one."""
    gate, handler = gated()
    worker = rig(handler, max_inflight=max_inflight)
    worker.start()
    [job_id] = await worker.post()
    await eventually(lambda: gate.inside == 1)
    try:
        await within(15, worker.stop(0.1))
    finally:
        gate.open.set()
    assert (await worker.job(job_id))[b"status"] == b"queued"
    assert await worker.types(job_id) == [b"queued", b"running", b"released"]
    assert await worker.pending() == 1


async def test_stop_does_not_wait_for_ever_for_a_claim_that_hangs(fake_rig: RigMaker) -> None:
    """Redis is unavailable during a claim: BEGIN is retried for ever, but not after SIGTERM."""
    worker = fake_rig()
    await worker.group()
    entered = asyncio.Event()

    async def hang(messages: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    worker.claimer.claim = hang  # type: ignore[method-assign]
    reading = asyncio.create_task(worker.reader.run())
    await worker.post()
    await asyncio.wait_for(entered.wait(), 5)
    stopping = drain(worker.consumers, reading, 0.1)
    await within(15, stopping)


async def test_a_reader_that_fails_is_not_a_clean_stop(fake_rig: RigMaker) -> None:
    """Otherwise the process would exit with 0 and would not be restarted."""
    worker = fake_rig()

    async def breaks() -> None:
        raise UnicodeError("a name that cannot be sent")

    reading = asyncio.create_task(breaks())
    await asyncio.wait({reading})
    with pytest.raises(UnicodeError):
        await drain(worker.consumers, reading, 0.1)


async def test_a_claim_that_fails_frees_its_slots(rig: RigMaker) -> None:
    worker: Rig = rig(max_inflight=1)
    await worker.group()
    admit = worker.claimer.claim

    async def fail_once(messages: Any) -> Any:
        worker.claimer.claim = admit  # type: ignore[method-assign]
        return []

    worker.claimer.claim = fail_once  # type: ignore[method-assign]
    _, second = await worker.post(2)
    worker.start()
    assert await worker.settled(second) == b"done"
    await eventually(lambda: worker.slots.free == 1)


# -- slots ------------------------------------------------------------------------------------


async def test_slots_count_running_and_reserved() -> None:
    slots = Slots(3)
    gate = asyncio.Event()
    slots.start(gate.wait())
    slots.add_reserved(2)
    assert (slots.free, slots.busy) == (0, 1)
    waiting = asyncio.create_task(slots.wait_free())
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.remove_reserved(1)
    assert await asyncio.wait_for(waiting, 5) == 1
    gate.set()
    assert await slots.wait_idle(5)
    assert slots.free == 2


async def test_slots_wait_idle_returns_false_after_the_timeout() -> None:
    slots = Slots(1)
    assert await slots.wait_idle(0)
    slots.start(asyncio.Event().wait())
    assert not await slots.wait_idle(0.01)
    await slots.cancel()
    assert slots.busy == 0


async def test_slots_cancel_tasks_that_have_not_started() -> None:
    slots = Slots(1)
    slots.start(asyncio.sleep(0))
    await slots.cancel()
    assert (slots.busy, slots.free) == (0, 1)


async def test_a_slot_is_free_while_its_job_is_being_reported() -> None:
    slots = Slots(1)
    reported = asyncio.Event()

    async def work() -> None:
        slots.mark_finishing(asyncio.current_task())
        await reported.wait()

    slots.start(work())
    assert slots.free == 0
    assert await within(2, slots.wait_free()) == 1
    slots.start(work())
    await asyncio.sleep(0)
    # At most as many as may run, or jobs would pile up while Redis is unavailable.
    assert (slots.busy, slots.free) == (2, 0)
    reported.set()
    assert await slots.wait_idle(2)
    assert slots.free == 1


async def test_marking_an_unknown_task_as_finishing_changes_nothing() -> None:
    slots = Slots(1)
    slots.mark_finishing(asyncio.current_task())
    assert slots.free == 1


async def test_the_next_message_is_read_before_a_report_is_answered(
    fake_rig: RigMaker,
) -> None:
    """Otherwise Redis and the worker would wait for each other in turn."""
    worker = fake_rig(max_inflight=1)
    finish, held = worker.executor._store.finish, asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        await held.wait()
        return await finish(*args, **rest)

    worker.executor._store.finish = slow  # type: ignore[method-assign]
    await worker.group()
    await worker.post(3)
    worker.start()
    await eventually(lambda: worker.slots.busy == 2)
    assert await worker.pending() == 2
    held.set()
