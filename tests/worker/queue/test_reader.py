"""The reader and its slots: never more messages than can run, and errors are retried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import exceptions
from redis.exceptions import ResponseError

import worker.queue.reader
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker, WorkerHarness, within
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


async def test_never_more_messages_than_free_slots_are_read(make_worker: MakeWorker) -> None:
    gate = Gate(closed=True)
    worker = make_worker(gate, max_inflight=5, count=3)
    spy = worker.reader._connection = SpyConnection(worker.reader._connection)
    await worker.post(20)
    worker.start()
    await eventually(lambda: gate.now == 5)
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


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.queue.reader, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(worker.queue.reader, "MAX_BACKOFF_S", 0.05)


@pytest.mark.usefixtures("short_backoff")
async def test_a_deleted_group_is_created_again_from_the_beginning(make_worker: MakeWorker) -> None:
    harness = make_worker()
    await harness.post(3)  # older than the group
    await harness.run_job()
    await harness.client.delete(harness.keys.queue)
    await harness.run_job()
    await harness.client.flushdb()
    await harness.run_job()
    assert await harness.pending() == 0


@pytest.mark.usefixtures("short_backoff")
async def test_errors_of_redis_are_retried(make_worker: MakeWorker) -> None:
    harness = make_worker()
    spy = harness.reader._connection = SpyConnection(harness.reader._connection)
    spy.faults = [
        exceptions.ConnectionError("away"),
        ResponseError("LOADING"),
        OSError("broken pipe"),
        ResponseError("WRONGTYPE"),
        ResponseError("BUSY"),
    ]
    await harness.run_job()
    assert not spy.faults
    before = spy.commands
    await harness.client.delete(harness.keys.queue)
    await harness.client.set(harness.keys.queue, "a string")
    await eventually(lambda: spy.commands > before + 3)
    await harness.client.delete(harness.keys.queue)
    await harness.run_job()


@pytest.mark.fakeredis_only
async def test_stop_does_not_wait_for_ever_for_a_claim_that_hangs(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is unavailable during a claim: BEGIN is retried for ever, but not after SIGTERM."""
    monkeypatch.setattr("worker.monitoring.shutdown.LAST_BEGIN_S", 0.05)
    worker = make_worker()
    await worker.group()
    entered = asyncio.Event()

    async def hang(messages: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    worker.claimer.claim = hang  # type: ignore[method-assign]
    reading = asyncio.create_task(worker.reader.run())
    await worker.post()
    await asyncio.wait_for(entered.wait(), 5)
    await within(15, drain(worker.consumers, reading, 0.1))


@pytest.mark.fakeredis_only
async def test_a_reader_that_fails_is_not_a_clean_stop(make_worker: MakeWorker) -> None:
    """Otherwise the process would exit with 0 and would not be restarted."""
    worker = make_worker()

    async def breaks() -> None:
        raise UnicodeError("a name that cannot be sent")

    reading = asyncio.create_task(breaks())
    await asyncio.wait({reading})
    with pytest.raises(UnicodeError):
        await drain(worker.consumers, reading, 0.1)


async def test_a_claim_that_fails_frees_its_slots(make_worker: MakeWorker) -> None:
    worker: WorkerHarness = make_worker(max_inflight=1)
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


async def test_slots_wait_idle_and_cancel() -> None:
    slots = Slots(1)
    slots.mark_finishing(asyncio.current_task())  # an unknown task changes nothing
    assert slots.free == 1
    assert await slots.wait_idle(0)
    slots.start(asyncio.Event().wait())
    assert not await slots.wait_idle(0.01)
    await slots.cancel()
    assert slots.busy == 0
    slots.start(asyncio.sleep(0))
    await slots.cancel()  # it has not started
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
