"""ScriptBatcher: many callers share few calls; transient errors are retried."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import sluice.common.redis.pipelined
from sluice.common.aio import STALL_THRESHOLD_S
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey, SluiceError, StoreUnavailable
from sluice.common.jobs.queue import QueueStore
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, Lease, WorkerIdentity
from sluice.common.redis import batching as module
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.redis.scripts import Record
from tests.support.servers import Backend
from tests.support.store.jobs import Proxy, StoreHarness, new_job, note
from tests.support.waiting import eventually


class CountingWire:
    """Counts the records of each script call on their way to a real connection."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.calls: list[int] = []

    @property
    def ready(self) -> bool:
        return bool(self._wire.ready)

    def send(self, args: tuple[Any, ...], on_reply: Any) -> None:
        self._count(args)
        self._wire.send(args, on_reply)

    async def execute_command(self, *args: Any) -> Any:
        self._count(args)
        return await self._wire.execute_command(*args)

    def _count(self, args: tuple[Any, ...]) -> None:
        self.calls.append(sum(arg == "trim" for arg in args))


@pytest.fixture
async def counted(
    backend: Backend, keys: JobKeys
) -> AsyncIterator[tuple[ScriptBatcher, CountingWire]]:
    wire = CountingWire(backend.wire())
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT, retry_for_s=5)
    await batcher.call(trim())
    wire.calls.clear()
    yield batcher, wire
    await batcher.close()


def trim(size: int = 0) -> Record:
    return Record("trim", (), (), size=size)


FEW = module.MIN_BATCH_SHARE


@pytest.mark.parametrize(
    ("count", "size", "calls"),
    [
        (FEW, 0, [FEW]),
        (40, 0, [20, 20]),  # Redis works on one half while replies of the other are handled
        (1000, 0, module.MAX_RECORDS),
        (12, module.MAX_BYTES // 2, 2),
    ],
    ids=["few", "divided", "many", "big"],
)
async def test_concurrent_callers_share_calls(
    counted: Any, count: int, size: int, calls: list[int] | int
) -> None:
    """Either the records of each call, or their maximum."""
    batcher, wire = counted
    replies = await asyncio.gather(*(batcher.call(trim(size)) for _ in range(count)))
    assert [reply.answer for reply in replies] == [Answer.OK] * count
    assert sum(wire.calls) == count
    if isinstance(calls, list):
        assert wire.calls == calls
    else:
        assert max(wire.calls) <= calls


@pytest.mark.real_redis
async def test_cancellations_do_not_mix_up_replies(harness: StoreHarness) -> None:
    random.seed(7)
    jobs = [new_job() for _ in range(1000)]
    tasks = [asyncio.create_task(harness.store.enqueue(job, "workers", 10**6)) for job in jobs]
    for index, task in enumerate(tasks):
        if index % 2:
            delay = random.choice([0, 0.001, 0.01, 0.05])
            asyncio.get_running_loop().call_later(delay, task.cancel)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for index, (job, outcome) in enumerate(zip(jobs, outcomes)):
        if index % 2 == 0 or not isinstance(outcome, asyncio.CancelledError):
            assert outcome == (job.job_id, False)
    # The job of a canceled caller is complete or absent.
    queued = {fields[b"job_id"] for _, fields in await harness.client.xrange(harness.keys.queue)}
    found = await harness.client.keys(harness.keys.job("*"))
    start = len(harness.keys.job(""))
    hashes = {key[start:] for key in found if not key.endswith(b":events")}
    assert queued == hashes
    assert len(queued) >= 500


@pytest.mark.real_redis
async def test_flushed_scripts_are_loaded_again(harness: StoreHarness) -> None:
    await harness.post()
    for _ in range(3):
        await harness.client.script_flush()
        await asyncio.gather(*(harness.post() for _ in range(20)))
    assert await harness.client.xlen(harness.keys.queue) == 61


# -- a network that loses replies -------------------------------------------------------------


@pytest.fixture
async def lossy(backend: Backend, keys: JobKeys) -> AsyncIterator[tuple[StoreHarness, Proxy]]:
    """A harness whose writes go through a proxy; its own client does not."""
    worker = WorkerIdentity("workers", "c1", 30_000, 600)
    harness = StoreHarness(backend, keys, worker)
    async with Proxy(str(backend.url)) as proxy:
        wire = PipelinedConnection(proxy.url)
        await harness.batcher.close()
        harness.batcher = ScriptBatcher(wire, keys, CORE_SCRIPT, retry_for_s=5)
        harness.store = JobStore(harness.client, keys, harness.batcher)
        harness.queue = QueueStore(harness.client, keys, harness.batcher)
        await harness.queue.trim()  # connected, script loaded
        yield harness, proxy
        await harness.close()
        await wire.aclose()


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_repeatedly_lost_replies_have_one_effect(lossy: tuple[StoreHarness, Proxy]) -> None:
    harness, proxy = lossy
    await harness.group()
    proxy.lose_replies = 1
    job = new_job()
    assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
    assert proxy.connections == 2
    assert await harness.client.xlen(harness.keys.queue) == 1
    job_id = job.job_id
    [message_id] = await harness.take()
    proxy.lose_replies = 1
    reply = await harness.begin(job_id, message_id, "t1")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    lease = Lease(job_id, message_id, 1, "t1")
    proxy.lose_replies = 1
    assert await harness.emit(lease, 1, [note("a"), note("b")]) is Answer.OK
    proxy.lose_replies = 1
    assert await harness.finish(lease, first=3, events=[note("c")]) in (Answer.OK, Answer.ALREADY)
    types = [b"queued", b"running", b"message", b"message", b"message", b"done"]
    assert await harness.types(job_id) == types
    assert await harness.pending() == 0
    assert (await harness.store.counts()).ended == 1


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_a_batch_with_a_lost_reply_is_answered(lossy: tuple[StoreHarness, Proxy]) -> None:
    harness, proxy = lossy
    proxy.lose_replies = 2
    jobs = [new_job() for _ in range(100)]
    outcomes = await asyncio.gather(*(harness.store.enqueue(job, "workers", 200) for job in jobs))
    assert [job_id for job_id, _ in outcomes] == [job.job_id for job in jobs]
    assert await harness.client.xlen(harness.keys.queue) == 100


@pytest.mark.real_redis
@pytest.mark.one_server
@pytest.mark.parametrize(("timeout_s", "retry_for_s"), [(60.0, 0.2), (0.1, 0.5)])
async def test_a_silent_connection_is_an_error_after_the_retry_time(
    backend: Backend,
    keys: JobKeys,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    retry_for_s: float,
) -> None:
    """It counts from the start, not from the first error, which takes seconds to show on a dead
    connection. A connection whose replies time out is replaced."""
    monkeypatch.setattr(sluice.common.redis.pipelined, "REPLY_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(sluice.common.redis.pipelined, "CONNECT_TIMEOUT_S", min(timeout_s, 5.0))
    async with Proxy(str(backend.url)) as proxy:
        wire = PipelinedConnection(proxy.url)
        patient = ScriptBatcher(wire, keys, CORE_SCRIPT, 30.0)
        batcher = ScriptBatcher(wire, keys, CORE_SCRIPT, retry_for_s=retry_for_s)
        await patient.call(trim())  # connected, script loaded
        proxy.silent = True
        calls = [batcher.submit([trim()]) for _ in range(200)]
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
        assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        if timeout_s < retry_for_s:
            proxy.silent = False
            assert (await patient.call(trim())).answer is Answer.OK
        await batcher.close()
        await patient.close()
        await wire.aclose()


async def test_a_refused_connection_is_an_error(keys: JobKeys) -> None:
    wire = PipelinedConnection("unix:///nonexistent/redis.sock")
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT, retry_for_s=0.2)
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(batcher.call(trim()) for _ in range(50)), return_exceptions=True), 10
    )
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}


class ByHand:
    """A client whose replies arrive when the test decides."""

    def __init__(self) -> None:
        self.ready = True
        self.sent: list[tuple[Any, ...]] = []
        self.waiting: list[Any] = []

    def send(self, args: tuple[Any, ...], on_reply: Any) -> None:
        self.sent.append(args)
        self.waiting.append(on_reply)

    async def execute_command(self, *args: Any) -> Any:
        self.sent.append(args)
        return b"PONG"

    async def aclose(self) -> None:
        pass

    def reply(self, *replies: Any) -> None:
        for reply in replies:
            self.waiting.pop(0)(reply)


class Demoted(ByHand):
    """Connected to a former master that is a replica by now; the next one is a master."""

    async def execute_command(self, *args: Any) -> Any:
        assert not self.ready
        return [[Answer.OK.value.encode()]]

    async def aclose(self) -> None:
        self.ready = False


async def test_a_script_that_ran_on_a_replica_is_sent_elsewhere(keys: JobKeys) -> None:
    """Redis runs the script and refuses its writes, so the connection sees no error."""
    wire = Demoted()
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT, retry_for_s=5)
    answered = batcher.submit([trim()])
    await asyncio.sleep(0)
    refusal = b"READONLY You can't write against a read only replica."
    wire.reply([[Answer.FAILED.value.encode(), refusal]])
    assert [outcome.answer for outcome in await answered] == [Answer.OK]  # type: ignore[union-attr]
    await batcher.close()


async def test_a_stall_of_this_process_is_not_a_timeout(keys: JobKeys) -> None:
    """Replies that arrived meanwhile are in the socket: they are read before callers get errors."""
    wire, silent = ByHand(), ByHand()
    batchers = [ScriptBatcher(each, keys, CORE_SCRIPT, retry_for_s=0.1) for each in (wire, silent)]
    answered, missing = (batcher.submit([trim()]) for batcher in batchers)
    await asyncio.sleep(0)
    time.sleep(0.1 + STALL_THRESHOLD_S + 0.1)  # this process is stalled
    for _ in range(3):
        await asyncio.sleep(0)
    assert not answered.done()
    wire.reply([[Answer.OK.value.encode()]])
    assert [outcome.answer for outcome in await answered] == [Answer.OK]  # type: ignore[union-attr]
    with pytest.raises(StoreUnavailable):  # a missing reply still times out
        await asyncio.wait_for(missing, 10)
    for batcher in batchers:
        await batcher.close()


async def test_close_fails_waiting_callers(keys: JobKeys) -> None:
    wire = PipelinedConnection("unix:///nonexistent/redis.sock")
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT)
    waiting = [asyncio.ensure_future(batcher.call(trim())) for _ in range(300)]
    await eventually(lambda: batcher._retries)
    await asyncio.wait_for(batcher.close(), 5)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_close_fails_calls_and_does_not_reconnect(lossy: tuple[StoreHarness, Proxy]) -> None:
    """A call that Redis has not answered yet fails for good when the batcher is closed."""
    harness, proxy = lossy
    proxy.silent = True
    waiting = asyncio.ensure_future(harness.queue.trim())
    await asyncio.sleep(0)  # the flush is scheduled...
    await asyncio.sleep(0)  # ...and was sent
    await harness.batcher.close()
    await harness.batcher._wire.aclose()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(waiting, 2)
    assert proxy.connections == 1
    assert not harness.batcher._retries


@pytest.mark.parametrize("bad", [None, "\ud800"], ids=["none", "surrogate"])
async def test_an_invalid_argument_fails_only_its_caller(harness: StoreHarness, bad: Any) -> None:
    """Otherwise one bad call would block the call slot of all others for ever."""
    await harness.queue.trim()
    for _ in range(module.MAX_CALLS + 1):
        with pytest.raises((SluiceError, TypeError, ValueError)):
            await asyncio.wait_for(harness.batcher.call(Record("trim", (), (bad,))), 2)
    assert (await asyncio.wait_for(harness.batcher.call(trim()), 2)).answer is Answer.OK
    # So does an unknown operation.
    good = harness.batcher.call(trim())
    bad = harness.batcher.call(Record("explode", (), ()))
    outcomes = await asyncio.gather(good, bad, return_exceptions=True)
    assert outcomes[0].answer is Answer.OK
    assert isinstance(outcomes[1], CorruptKey)
