"""The index and the counts of jobs: each job is in them once; no operation depends on them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.errors import QueueFull
from sluice.common.jobs.queue_stats import JobCounts
from sluice.common.jobs.scripts import read_core_lua
from sluice.common.jobs.store import Claim, WorkerIdentity
from tests.common.jobs.scripts.gateway.test_redrive import dead_letter_of, redrive_of
from tests.common.jobs.scripts.queue.test_dead_letter import fields_of, unknown
from tests.support.servers import Backend
from tests.support.store.jobs import DONE, FAILED, GIVEN_UP, StoreHarness, new_job
from tests.support.store.workflows import WorkflowHarness

CAP = 5
#: The index may exceed its limit by this many.
SLACK = 16


@pytest.fixture
async def small(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[StoreHarness]:
    """A harness with a small index."""
    made = StoreHarness(backend, replace(keys, index_max=CAP), worker)
    yield made
    await made.close()


async def indexed(harness: StoreHarness) -> list[str]:
    """The ids in the index, oldest first."""
    return [name.decode() for name in await harness.client.zrange(harness.keys.index, 0, -1)]


async def third_party_job(harness: StoreHarness, **fields: str) -> tuple[str, str]:
    """A job of a third-party producer, and its message, already read."""
    if not await harness.client.exists(harness.keys.queue):
        await harness.group()
    job_id = str(uuid.uuid4())
    record = {"job_id": job_id, "task": "chat", "payload": "{}", "status": "queued", **fields}
    await harness.client.hset(harness.keys.job(job_id), mapping=record)
    await harness.client.xadd(
        harness.keys.queue, {"job_id": job_id, "task": "chat", "payload": "{}"}
    )
    [message_id] = await harness.take()
    return job_id, message_id


async def test_accepted_jobs_by_their_time(harness: StoreHarness) -> None:
    [plain] = await harness.post()
    [later] = await harness.post(delay_ms=60_000, schedule_limit=10)
    for job_id in (plain, later):
        created = (await harness.job(job_id))[b"created_ts"]
        assert await harness.client.zscore(harness.keys.index, job_id) == int(created)
    with pytest.raises(QueueFull):
        await harness.store.enqueue(new_job(), "workers", 1)
    assert set(await indexed(harness)) == {plain, later}
    # The time of acceptance stays.
    await harness.client.delete(harness.keys.queue)
    job_id, message_id = await harness.waiting()
    await harness.client.zadd(harness.keys.index, {job_id: 17})
    assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.RUN
    assert await harness.client.zscore(harness.keys.index, job_id) == 17


async def test_a_workflow_step_is_indexed_and_counted(backend: Backend, keys: JobKeys) -> None:
    workflow = WorkflowHarness(backend, keys)
    try:
        await workflow.start(await workflow.create(), "first")
    finally:
        await workflow.close()
    client = backend.client()
    [job_id] = [name.decode() for name in await client.zrange(keys.index, 0, -1)]
    assert await client.hget(keys.job(job_id), "task") == b"tool"
    assert await client.hgetall(keys.counts) == {b"accepted": b"1"}


async def test_a_third_party_job_is_indexed_when_it_begins(harness: StoreHarness) -> None:
    job_id, message_id = await third_party_job(harness, created_ts="1234")
    assert await indexed(harness) == []
    assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.RUN
    began = int((await harness.job(job_id))[b"updated_ts"])
    assert await harness.client.zscore(harness.keys.index, job_id) == began
    lease = await harness.running("t2")
    await harness.client.delete(harness.keys.index)
    await harness.take_over(lease, "t3")  # a later attempt does not index it again
    assert await indexed(harness) == []


async def test_only_the_newest_jobs_are_kept(small: StoreHarness) -> None:
    await small.client.zadd(small.keys.index, {f"old-{n}": n for n in range(100)})
    for _ in range(3 * SLACK):
        await small.post()
        assert len(await indexed(small)) <= 100 + SLACK
    assert len(await indexed(small)) < CAP + SLACK
    assert not any(job_id.startswith("old-") for job_id in await indexed(small))
    at_once = [new_job() for _ in range(60)]
    await asyncio.gather(*(small.store.enqueue(job, "workers", 10**9) for job in at_once))
    assert len(await indexed(small)) < CAP + SLACK
    # Also if the count is invalid.
    await small.client.delete(small.keys.counts, small.keys.index)
    await small.client.set(small.keys.counts, "a string")
    await small.post(2 * CAP)
    assert len(await indexed(small)) == CAP


async def test_third_party_jobs_do_not_exceed_the_limit(small: StoreHarness) -> None:
    for number in range(2 * CAP):
        job_id, message_id = await third_party_job(small)
        assert (await small.begin(job_id, message_id, f"t{number}")).answer is Answer.RUN
        assert len(await indexed(small)) == min(number + 1, CAP)


async def test_no_index_is_kept(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> None:
    without = StoreHarness(backend, replace(keys, index_max=0), worker)
    try:
        await without.finish(await without.running())
        assert not await without.client.exists(keys.index)
    finally:
        await without.close()


async def test_an_index_of_the_wrong_type_hides_no_reply(harness: StoreHarness) -> None:
    await harness.client.set(harness.keys.index, "a string")
    lease = await harness.running()
    assert await harness.finish(lease) is Answer.OK
    assert await harness.client.get(harness.keys.index) == b"a string"
    assert (await harness.store.counts()).done == 1
    # For example if the ACL of the server is older than the index.
    assert "redis.call(" not in read_core_lua("dispatch")


@pytest.mark.real_redis
async def test_very_many_jobs_at_once(harness: StoreHarness) -> None:
    await harness.group()
    jobs = [new_job() for _ in range(600)]
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 10**9) for job in jobs))
    await harness.client.delete(harness.keys.index)
    messages = await harness.take(len(jobs))
    claims = [
        Claim(job.job_id, message_id, f"t{n}")
        for n, (job, message_id) in enumerate(zip(jobs, messages))
    ]
    replies = await harness.store.begin(claims, harness.worker)
    assert sum(reply.answer is Answer.RUN for reply in replies) == len(jobs)  # type: ignore[union-attr]
    assert set(await indexed(harness)) == {job.job_id for job in jobs}


# -- Counts: every job is counted once when it is accepted and once when it ends ------------------


async def test_each_kind_of_end_has_its_count(harness: StoreHarness) -> None:
    assert await harness.store.counts() == JobCounts()
    done, failed, canceled = [await harness.running(f"t{n}") for n in range(3)]
    assert await harness.store.counts() == JobCounts(accepted=3)
    await asyncio.gather(harness.finish(done, DONE), harness.finish(failed, FAILED))
    assert (await harness.cancel(canceled.job_id)).answer is Answer.CANCELING
    assert (await harness.store.counts()).canceled == 0  # only requested so far
    assert await harness.retry(canceled) is Answer.CANCELED
    assert await harness.store.counts() == JobCounts(accepted=3, done=1, error=1, canceled=1)
    assert (await harness.store.counts()).ended == 3
    assert await harness.client.ttl(harness.keys.counts) > 29 * 24 * 3600


async def test_a_job_is_accepted_once(harness: StoreHarness) -> None:
    job = new_job(idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    same = new_job(idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    for wanted in (job, job, same):
        await harness.store.enqueue(wanted, harness.worker.group, 10)
    await harness.post(delay_ms=60_000, schedule_limit=10)
    assert await harness.store.counts() == JobCounts(accepted=2)
    jobs = [new_job() for _ in range(40)]  # in one call
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 10**9) for job in jobs))
    await asyncio.gather(*(harness.cancel(job.job_id) for job in jobs))
    assert await harness.store.counts() == JobCounts(accepted=42, canceled=40)


async def test_a_redriven_dead_letter_is_indexed_and_accepted(harness: StoreHarness) -> None:
    wanted = redrive_of(harness, await dead_letter_of(harness))
    for _ in range(2):
        await harness.queue.redrive(wanted, 100)
    assert wanted.job_id in await indexed(harness)
    assert await harness.store.counts() == JobCounts(accepted=2, error=1)
    lease = await harness.running()
    assert await harness.finish(lease, GIVEN_UP) is Answer.OK
    assert await harness.finish(lease, GIVEN_UP) is Answer.ALREADY
    assert await harness.store.counts() == JobCounts(accepted=3, error=2)


async def test_a_job_that_expired_before_its_start_counts_as_error(harness: StoreHarness) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(harness, fields_of(job_id))
    assert await harness.dead_letter(message_id, fields_of(job_id)) is Answer.EXPIRED
    assert await harness.dead_letter(message_id, fields_of(job_id)) is Answer.ALREADY
    assert await indexed(harness) == [job_id]
    assert await harness.store.counts() == JobCounts(error=1)  # of a third-party producer


async def test_invalid_stored_counts(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.client.hset(harness.keys.counts, mapping={"done": "many", "error": "3", "x": "y"})
    assert await harness.finish(lease) is Answer.OK  # only its count is lost
    assert (await harness.job(lease.job_id))[b"status"] == b"done"
    [job_id] = await harness.post()
    await harness.cancel(job_id)
    assert await harness.store.counts() == JobCounts(accepted=2, error=3, canceled=1)
