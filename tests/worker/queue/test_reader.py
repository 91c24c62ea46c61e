"""The reader and its slots: never more messages than can run; with Redis 8.4, reads also claim."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import exceptions
from redis.exceptions import NoPermissionError, ResponseError

import sluice.worker.queue.reader
from sluice.worker.monitoring.shutdown import drain
from sluice.worker.queue.slots import Slots
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker, WorkerHarness, within


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
    monkeypatch.setattr(sluice.worker.queue.reader, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(sluice.worker.queue.reader, "MAX_BACKOFF_S", 0.05)


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
    monkeypatch.setattr("sluice.worker.monitoring.shutdown.LAST_BEGIN_S", 0.05)
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


# -- Redis 8.4 can read and claim in one command -----------------------------------------------


class NewerServer:
    """The reader's connection to a server that reports a given version.

    From 8.4 on its reads accept the CLAIM option, and entries have their idle time and the number
    of deliveries.
    """

    def __init__(self, connection: Any, info: bytes | Exception) -> None:
        self._connection = connection
        self.info = info
        self.reads: list[tuple[Any, ...]] = []
        self.asked = 0
        #: Entries with an expired lease that the next read claims.
        self.claimable: list[list[Any]] = []

    async def execute_command(self, *args: Any) -> Any:
        if args[0] == "INFO":
            self.asked += 1
            if isinstance(self.info, Exception):
                raise self.info
            return self.info
        if args[0] != "XREADGROUP":
            return await self._connection.execute_command(*args)
        self.reads.append(args)
        if "CLAIM" not in args:
            return await self._connection.execute_command(*args)
        at = args.index("CLAIM")
        reply = await self._connection.execute_command(*args[:at], *args[at + 2 :])
        fresh = [[*entry, 0, 0] for entry in reply[0][1]] if reply else []
        claimed, self.claimable = self.claimable, []
        entries = claimed + fresh
        return [[args[-2].encode(), entries]] if entries else None

    async def aclose(self) -> None:
        await self._connection.aclose()


def connect_reader(worker: WorkerHarness, info: bytes | Exception) -> NewerServer:
    server = NewerServer(worker.reader._connection, info)
    worker.reader._connection = server
    return server


def version(text: str) -> bytes:
    return f"# Server\r\nredis_version:{text}\r\nredis_mode:standalone\r\n".encode()


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("number", ["8.4.0", "8.4.1", "8.10.0", "9.0.0", "10.0.255"])
async def test_a_newer_server_claims_with_a_read(make_worker: MakeWorker, number: str) -> None:
    """Claimed messages run; a claimed entry that was deleted is skipped."""
    worker = make_worker()
    server = connect_reader(worker, version(number))
    await worker.group()
    left = await worker.post(2)
    server.claimable = [[b"1-1", None, 31_000, 7]]
    for delivery, message in enumerate(await worker.messages(), 1):  # of a worker that died
        fields = [item for pair in message.fields.items() for item in pair]
        server.claimable.append([message.id.encode(), fields, 31_000, delivery])
    jobs = left + await worker.post(2)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    await worker.all_acked()
    read = server.reads[0]
    assert read[read.index("CLAIM") + 1] == worker.worker.lease_ms
    assert read.index("BLOCK") < read.index("CLAIM") < read.index("STREAMS")
    for job_id in jobs:
        assert await worker.types(job_id) == [b"queued", b"running", b"message", b"done"]


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    "info",
    [
        version("7.0.15"),
        version("8.3.9"),
        version("7.2.4") + b"server_name:valkey\r\nvalkey_version:9.0.0\r\n",
        version("unknown"),
        b"",
        b"\xff\xfe",
        NoPermissionError("this user has no permissions to run the 'info' command"),
        ResponseError("unknown command 'INFO'"),
    ],
    ids=["7.0", "8.3", "valkey", "odd", "empty", "junk", "forbidden", "unknown"],
)
async def test_an_older_server_does_not(make_worker: MakeWorker, info: bytes | Exception) -> None:
    worker = make_worker()
    server = connect_reader(worker, info)
    await worker.run_job()
    await eventually(lambda: len(server.reads) > 2)
    assert not any("CLAIM" in read for read in server.reads)
    assert server.asked == 1


async def reads_can_claim(worker: WorkerHarness) -> bool:
    """Tries the option, on a separate stream."""
    client, stream = worker.client, f"{worker.keys.queue}:try"
    await client.xgroup_create(stream, "group", mkstream=True)
    command = ("XREADGROUP", "GROUP", "group", "me", "CLAIM", 1, "STREAMS", stream, ">")
    try:
        await client.execute_command(*command)
    except ResponseError:
        return False
    return True


async def expire_messages(worker: WorkerHarness, ids: list[str], consumer: str = "dead") -> None:
    idle_ms = worker.worker.lease_ms * 2
    await worker.client.xclaim(
        *(worker.keys.queue, worker.worker.group, consumer, 0, ids), idle=idle_ms, justid=True
    )


@pytest.mark.real_redis
async def test_expired_messages_are_claimed_on_every_server(make_worker: MakeWorker) -> None:
    """By a read if the server can do that, as Redis 8.4, else by the scan for expired leases."""
    worker = make_worker()
    await worker.group()
    left = await worker.post(3)
    await expire_messages(worker, await worker.take(3, "dead"))
    busy = await worker.post(1)
    await worker.take(1, "busy")  # its lease has not expired
    fresh = await worker.post(2)
    worker.start()
    assert await worker.ended(fresh) == {b"done"}
    can_claim = await reads_can_claim(worker)
    assert bool(worker.reader._claim) == can_claim
    if not can_claim:
        assert {(await worker.job(job_id))[b"status"] for job_id in left} == {b"queued"}
        assert await worker.consumer.recovery.run_once() == 3
    assert await worker.ended(left) == {b"done"}
    assert worker.consumer.counters.for_task("chat").reclaimed == 3
    assert (await worker.job(busy[0]))[b"status"] == b"queued"
    for job_id in left:
        assert await worker.types(job_id) == [b"queued", b"running", b"message", b"done"]


@pytest.mark.real_redis
async def test_a_deleted_message_does_not_stop_reads(make_worker: MakeWorker) -> None:
    """Redis 8.6 leaves it in the pending list; the scan for expired leases removes it."""
    worker = make_worker()
    await worker.group()
    [lost, left] = await worker.post(2)
    ids = await worker.take(2, "dead")
    await expire_messages(worker, ids)
    await worker.client.xdel(worker.keys.queue, ids[0])
    worker.start(recover=True)
    fresh = await worker.post(2)
    assert await worker.ended([left, *fresh]) == {b"done"}
    assert (await worker.job(lost))[b"status"] == b"queued"

    async def only_the_deleted() -> bool:
        return await worker.pending() <= 1  # Redis 6.2 keeps a deleted entry pending

    await eventually(only_the_deleted)


@pytest.mark.fakeredis_only
async def test_the_version_is_read_again_after_an_error(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error the server may be another one, such as an older replica."""
    monkeypatch.setattr("sluice.worker.queue.reader._FIRST_BACKOFF_S", 0.01)
    worker = make_worker()
    server = connect_reader(worker, version("8.4.0"))
    worker.start()
    await eventually(lambda: any("CLAIM" in read for read in server.reads))
    server.info = version("7.0.15")
    execute = server.execute_command

    async def refuse(*args: Any) -> Any:
        if "CLAIM" in args:
            raise ResponseError("ERR syntax error")
        return await execute(*args)

    server.execute_command = refuse  # type: ignore[method-assign]
    await worker.run_job()


@pytest.mark.fakeredis_only
async def test_an_error_while_reading_the_version_is_retried(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.reader._FIRST_BACKOFF_S", 0.01)
    worker = make_worker()
    server = connect_reader(worker, exceptions.ConnectionError("away"))
    worker.start()
    [job_id] = await worker.post()
    await eventually(lambda: server.asked > 1)
    server.info = version("8.4.0")
    assert await worker.settled(job_id) == b"done"
    assert "CLAIM" in server.reads[0]
