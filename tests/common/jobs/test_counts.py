"""Counts: every job is counted once when it is accepted and once when it ends."""

from __future__ import annotations

import asyncio
import uuid

from common.contracts.jobs import JobKeys
from common.contracts.queue import Answer
from common.jobs.queue_stats import JobCounts
from tests.common.features.workflows.kit import Flow
from tests.common.jobs.scripts.gateway.test_redrive import dead_letter_of, redrive_of
from tests.common.jobs.scripts.queue.test_dead_letter import fields_of, unknown
from tests.common.kit import DONE, FAILED, GIVEN_UP, Scene, new_job
from tests.support.backends import Backend


async def test_nothing_has_happened_yet(scene: Scene) -> None:
    assert await scene.store.counts() == JobCounts()


async def test_each_kind_of_end_has_its_count(scene: Scene) -> None:
    done, failed, canceled = [await scene.running(f"t{n}") for n in range(3)]
    assert await scene.store.counts() == JobCounts(accepted=3)
    await asyncio.gather(scene.finish(done, DONE), scene.finish(failed, FAILED))
    assert (await scene.cancel(canceled.job_id)).answer is Answer.CANCELING
    assert (await scene.store.counts()).canceled == 0  # only requested so far
    assert await scene.retry(canceled) is Answer.CANCELED
    assert await scene.store.counts() == JobCounts(accepted=3, done=1, error=1, canceled=1)
    assert (await scene.store.counts()).ended == 3
    assert await scene.client.ttl(scene.keys.counts) > 29 * 24 * 3600


async def test_a_job_is_accepted_once(scene: Scene) -> None:
    job = new_job(idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    same = new_job(idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    for wanted in (job, job, same):
        await scene.store.enqueue(wanted, scene.worker.group, 10)
    await scene.post(delay_ms=60_000, schedule_limit=10)
    assert await scene.store.counts() == JobCounts(accepted=2)


async def test_all_jobs_of_one_call_are_counted(scene: Scene) -> None:
    jobs = [new_job() for _ in range(40)]
    await asyncio.gather(*(scene.store.enqueue(job, "workers", 10**9) for job in jobs))
    await asyncio.gather(*(scene.cancel(job.job_id) for job in jobs))
    assert await scene.store.counts() == JobCounts(accepted=40, canceled=40)


async def test_a_redriven_dead_letter_counts_as_accepted(scene: Scene) -> None:
    letter = await dead_letter_of(scene)
    before = await scene.store.counts()
    for _ in range(2):
        await scene.queue.redrive(redrive_of(scene, letter), 100)
    assert await scene.store.counts() == JobCounts(before.accepted + 1, 0, before.error, 0)


async def test_an_exhausted_job_counts_as_one_error(scene: Scene) -> None:
    lease = await scene.running()
    assert await scene.finish(lease, GIVEN_UP) is Answer.OK
    assert await scene.finish(lease, GIVEN_UP) is Answer.ALREADY
    assert await scene.store.counts() == JobCounts(accepted=1, error=1)


async def test_a_job_that_expired_before_its_start_counts_as_error(scene: Scene) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id))
    assert await scene.dead_letter(message_id, fields_of(job_id)) is Answer.EXPIRED
    assert await scene.dead_letter(message_id, fields_of(job_id)) is Answer.ALREADY
    assert await scene.store.counts() == JobCounts(error=1)  # of a third-party producer


async def test_a_workflow_step_counts_as_accepted(backend: Backend, keys: JobKeys) -> None:
    flow = Flow(backend, keys)
    try:
        await flow.start(await flow.create(), "first")
    finally:
        await flow.close()
    fields = await backend.client().hgetall(keys.counts)  # type: ignore[misc]
    assert fields == {b"accepted": b"1"}


async def test_invalid_stored_counts(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.hset(scene.keys.counts, mapping={"done": "many", "error": "3", "x": "y"})
    assert await scene.finish(lease) is Answer.OK  # only its count is lost
    assert (await scene.job(lease.job_id))[b"status"] == b"done"
    [job_id] = await scene.post()
    await scene.cancel(job_id)
    assert await scene.store.counts() == JobCounts(accepted=2, error=3, canceled=1)
