"""The index of jobs: accepted and begun jobs are in it once; no operation depends on it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from common.contracts.jobs import JobKeys
from common.contracts.queue import Answer
from common.errors import QueueFull
from common.jobs.scripts import read_core_lua
from common.jobs.store import Claim, WorkerIdentity
from tests.common.features.workflows.kit import Flow
from tests.common.jobs.scripts.gateway.test_redrive import dead_letter_of, redrive_of
from tests.common.jobs.scripts.queue.test_dead_letter import fields_of, unknown
from tests.common.kit import Scene, new_job
from tests.support.backends import Backend

CAP = 5
#: The index may exceed its limit by this many.
SLACK = 16


@pytest.fixture
async def small(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[Scene]:
    """A scene with a small index."""
    made = Scene(backend, replace(keys, index_max=CAP), worker)
    yield made
    await made.close()


async def indexed(scene: Scene) -> list[str]:
    """The ids in the index, oldest first."""
    return [name.decode() for name in await scene.client.zrange(scene.keys.index, 0, -1)]


async def third_party_job(scene: Scene, **fields: str) -> tuple[str, str]:
    """A job of a third-party producer, and its message, already read."""
    if not await scene.client.exists(scene.keys.queue):
        await scene.group()
    job_id = str(uuid.uuid4())
    record = {"job_id": job_id, "task": "chat", "payload": "{}", "status": "queued", **fields}
    await scene.client.hset(scene.keys.job(job_id), mapping=record)
    await scene.client.xadd(scene.keys.queue, {"job_id": job_id, "task": "chat", "payload": "{}"})
    [message_id] = await scene.take()
    return job_id, message_id


async def test_accepted_jobs_by_their_time(scene: Scene) -> None:
    [plain] = await scene.post()
    [later] = await scene.post(delay_ms=60_000, schedule_limit=10)
    for job_id in (plain, later):
        created = (await scene.job(job_id))[b"created_ts"]
        assert await scene.client.zscore(scene.keys.index, job_id) == int(created)
    assert set(await indexed(scene)) == {plain, later}


async def test_refused_jobs_are_not_indexed(scene: Scene) -> None:
    await scene.post()
    with pytest.raises(QueueFull):
        await scene.store.enqueue(new_job(), "workers", 1)
    assert len(await indexed(scene)) == 1


async def test_the_time_of_acceptance_stays(scene: Scene) -> None:
    job_id, message_id = await scene.waiting()
    await scene.client.zadd(scene.keys.index, {job_id: 17})
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.RUN
    assert await scene.client.zscore(scene.keys.index, job_id) == 17


async def test_a_redriven_dead_letter_is_indexed(scene: Scene) -> None:
    wanted = redrive_of(scene, await dead_letter_of(scene))
    await scene.queue.redrive(wanted, 100)
    assert wanted.job_id in await indexed(scene)


async def test_a_workflow_step_is_indexed(backend: Backend, keys: JobKeys) -> None:
    flow = Flow(backend, keys)
    try:
        await flow.start(await flow.create(), "first")
    finally:
        await flow.close()
    client = backend.client()
    [job_id] = [name.decode() for name in await client.zrange(keys.index, 0, -1)]
    assert await client.hget(keys.job(job_id), "task") == b"tool"  # type: ignore[misc]


async def test_a_third_party_job_is_indexed_when_it_begins(scene: Scene) -> None:
    job_id, message_id = await third_party_job(scene, created_ts="1234")
    assert await indexed(scene) == []
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.RUN
    began = int((await scene.job(job_id))[b"updated_ts"])
    assert await scene.client.zscore(scene.keys.index, job_id) == began


async def test_later_attempts_do_not_index_a_job_again(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.delete(scene.keys.index)
    await scene.take_over(lease)
    assert await indexed(scene) == []


async def test_a_job_that_expired_before_its_start_is_indexed(scene: Scene) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id))
    assert await scene.dead_letter(message_id, fields_of(job_id)) is Answer.EXPIRED
    assert await indexed(scene) == [job_id]


async def test_only_the_newest_jobs_are_kept(small: Scene) -> None:
    await small.client.zadd(small.keys.index, {f"old-{n}": n for n in range(100)})
    for _ in range(3 * SLACK):
        await small.post()
        assert len(await indexed(small)) <= 100 + SLACK
    assert len(await indexed(small)) < CAP + SLACK
    assert not any(job_id.startswith("old-") for job_id in await indexed(small))
    at_once = [new_job() for _ in range(60)]
    await asyncio.gather(*(small.store.enqueue(job, "workers", 10**9) for job in at_once))
    assert len(await indexed(small)) < CAP + SLACK


async def test_third_party_jobs_do_not_exceed_the_limit(small: Scene) -> None:
    for number in range(2 * CAP):
        job_id, message_id = await third_party_job(small)
        assert (await small.begin(job_id, message_id, f"t{number}")).answer is Answer.RUN
        assert len(await indexed(small)) == min(number + 1, CAP)


async def test_an_invalid_count_does_not_let_the_index_grow(small: Scene) -> None:
    await small.client.set(small.keys.counts, "a string")
    await small.post(2 * CAP)
    assert len(await indexed(small)) == CAP


async def test_no_index_is_kept(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> None:
    without = Scene(backend, replace(keys, index_max=0), worker)
    try:
        await without.finish(await without.running())
        assert not await without.client.exists(keys.index)
    finally:
        await without.close()


async def test_an_index_of_the_wrong_type_hides_no_reply(scene: Scene) -> None:
    await scene.client.set(scene.keys.index, "a string")
    lease = await scene.running()
    assert await scene.finish(lease) is Answer.OK
    assert await scene.client.get(scene.keys.index) == b"a string"
    assert (await scene.store.counts()).done == 1


def test_no_error_after_the_records_hides_their_replies() -> None:
    """For example if the ACL of the server is older than the index."""
    assert "redis.call(" not in read_core_lua("dispatch")


async def test_very_many_jobs_at_once(scene: Scene) -> None:
    await scene.group()
    jobs = [new_job() for _ in range(1200)]
    await asyncio.gather(*(scene.store.enqueue(job, "workers", 10**9) for job in jobs))
    await scene.client.delete(scene.keys.index)
    messages = await scene.take(len(jobs))
    claims = [
        Claim(job.job_id, message_id, f"t{n}")
        for n, (job, message_id) in enumerate(zip(jobs, messages))
    ]
    replies = await scene.store.begin(claims, scene.worker)
    assert sum(reply.answer is Answer.RUN for reply in replies) == len(jobs)  # type: ignore[union-attr]
    assert set(await indexed(scene)) == {job.job_id for job in jobs}
