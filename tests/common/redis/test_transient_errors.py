"""Transient errors of Redis: nothing is written or lost, and work continues."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import redis

from sluice.common.contracts.queue import Answer
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.queue import DeadLetterRedrive, QueueStore
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import is_transient
from tests.support.store.jobs import GIVEN_UP, StoreHarness, new_job, note
from tests.support.waiting import eventually


@pytest.fixture
def repeating(caplog: pytest.LogCaptureFixture) -> object:
    """Waits until the batcher has met the error."""

    async def wait() -> None:
        await eventually(lambda: "retrying" in caplog.text)

    return wait


async def impatient_for(harness: StoreHarness) -> ScriptBatcher:
    """A batcher with a short retry time, already connected and with its script loaded."""
    wire = harness.backend.wire()
    patient = ScriptBatcher(wire, harness.keys, CORE_SCRIPT, retry_for_s=30.0)
    await QueueStore(harness.client, harness.keys, patient).trim()
    await patient.close()
    return ScriptBatcher(wire, harness.keys, CORE_SCRIPT, retry_for_s=0.3)


@pytest.mark.real_redis
async def test_out_of_memory_is_reported_in_time_and_writes_nothing(harness: StoreHarness) -> None:
    impatient = await impatient_for(harness)
    store = JobStore(harness.client, harness.keys, impatient)
    async with harness.out_of_memory():
        job = new_job(idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
        with pytest.raises(StoreUnavailable, match=r"OOM|refuses"):
            await asyncio.wait_for(store.enqueue(job, "workers", 200), 20)
        assert await harness.snapshot() == {}
    assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
    await impatient.close()


@pytest.mark.real_redis
async def test_only_new_jobs_wait_for_memory(harness: StoreHarness, repeating: object) -> None:
    """Otherwise no job would end, and memory would never be freed."""
    leases = [await harness.running(f"t{number}") for number in range(4)]
    ending, retried, released, canceled = leases
    async with harness.out_of_memory():
        job = new_job()
        posting = asyncio.ensure_future(harness.store.enqueue(job, "workers", 200))
        await repeating()
        assert not await harness.client.exists(harness.keys.job(job.job_id))
        assert (await harness.renew(ending)).answer is Answer.OK
        assert await harness.emit(ending, 1, [note("a")]) is Answer.OK
        assert await harness.finish(ending, first=2, events=[note("b")]) is Answer.OK
        assert await harness.store.retry(retried, harness.worker, 0, b"{}", b"{}") is Answer.OK
        assert await harness.store.release(released, harness.worker, b"{}") is Answer.OK
        assert (await harness.begin_next(released, "t9")).answer is Answer.RUN
        reply = await harness.store.cancel(canceled.job_id, "workers", b"{}", 60)
        assert reply.answer is Answer.CANCELING
    assert await asyncio.wait_for(posting, 10) == (job.job_id, False)
    types = [b"queued", b"running", b"message", b"message", b"done"]
    assert await harness.types(ending.job_id) == types


@pytest.mark.real_redis
async def test_operations_that_need_memory_write_nothing(harness: StoreHarness) -> None:
    """A delayed job, a due job, a dead letter to redrive: all of them can wait."""
    impatient = await impatient_for(harness)
    store = JobStore(harness.client, harness.keys, impatient)
    queue = QueueStore(harness.client, harness.keys, impatient)
    await harness.finish(await harness.running(), GIVEN_UP)
    [letter] = await harness.letters()
    [due] = await harness.post(delay_ms=1, schedule_limit=9)
    await harness.client.zadd(harness.keys.scheduled, {due: 1})
    delayed = new_job(delay_ms=60_000, schedule_limit=9, max_attempts=2)
    wanted = DeadLetterRedrive(letter.id, queue.redriven_job_id(letter.id), "chat", "{}", 60)
    before = await harness.snapshot()

    async def promote(by: QueueStore) -> Answer:
        [outcome] = await by.promote([due])
        return outcome.answer

    async with harness.out_of_memory():
        for attempt in (
            store.enqueue(delayed, "workers", 200),
            queue.redrive(wanted, 9),
            promote(queue),
        ):
            with pytest.raises(StoreUnavailable, match=r"OOM|refuses"):
                await asyncio.wait_for(attempt, 20)
        assert await harness.snapshot() == before
    assert await harness.store.enqueue(delayed, "workers", 200) == (delayed.job_id, False)
    assert (await harness.queue.redrive(wanted, 9)).answer is Answer.CREATED
    assert await promote(harness.queue) is Answer.OK
    await impatient.close()


@pytest.mark.real_redis
@pytest.mark.one_server
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ],
    ids=["read-only", "too few replicas"],
)
async def test_a_server_that_refuses_writes_for_a_while_is_retried(
    harness: StoreHarness, repeating: object, begin: str, end: str
) -> None:
    await harness.post()
    before = await harness.snapshot()
    await harness.client.execute_command(*begin.split())
    try:
        job = new_job()
        posting = asyncio.ensure_future(harness.store.enqueue(job, "workers", 200))
        await repeating()
        assert await harness.snapshot() == before
    finally:
        await harness.client.execute_command(*end.split())
    assert await asyncio.wait_for(posting, 10) == (job.job_id, False)
    assert await harness.client.xlen(harness.keys.queue) == 2


@pytest.mark.real_redis
async def test_a_busy_server_is_retried(harness: StoreHarness, repeating: object) -> None:
    lease = await harness.running()
    await harness.client.config_set("lua-time-limit", "1")
    blocker = harness.backend.sync_client()

    def block() -> None:
        with contextlib.suppress(redis.RedisError):
            blocker.eval("while true do end", 0)

    thread = threading.Thread(target=block)
    thread.start()

    async def is_busy() -> bool:
        try:
            await harness.client.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)
        return False

    await eventually(is_busy)
    finishing = asyncio.ensure_future(harness.finish(lease))
    await repeating()
    assert not finishing.done()
    await harness.client.script_kill()
    thread.join()
    blocker.close()
    await harness.client.config_set("lua-time-limit", "5000")
    assert await asyncio.wait_for(finishing, 10) is Answer.OK


@pytest.mark.parametrize(
    "message",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "OOM command not allowed when used memory > 'maxmemory'. script: 9f, on @user_script:1.",
        "@user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.",
        "ERR Error running script (call to f_9f): @user_script:1: @user_script: 1: -OOM command",
        "Error running script (call to f_9f): @user_script:1: -READONLY You can't write against",
        "-MISCONF Redis is configured to save RDB snapshots",
        "BUSY Redis is busy running a script.",
        "LOADING Redis is loading the dataset in memory",
        "NOREPLICAS Not enough good replicas to write.",
    ],
)
def test_transient_errors_are_recognised(message: str) -> None:
    assert is_transient(message)


@pytest.mark.parametrize(
    "message",
    [
        "user_script:40: WRONGTYPE rag:LOADING:ontology is a list, not a hash",
        "WRONGTYPE workflow:job:BUSY is a set, not a hash",
        "ERR Error running script (call to f_9f): @user_script:7: READONLYish",
        "ERR value of OOM is not an integer",
        "user_script:3: attempt to index field 'OOM' (a nil value)",
    ],
)
def test_errors_that_only_mention_them_are_not_transient(message: str) -> None:
    assert not is_transient(message)
