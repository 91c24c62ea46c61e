"""Keys of the wrong type, for the scripts of gateways and of the queue (see test_corrupt.py)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.errors import CorruptKey
from common.jobs.queue import DeadLetterRedrive
from tests.common.jobs.scripts.test_corrupt import (
    OF_THE_JOB,
    all_or_nothing,
    bystander,
    key_of,
    parts,
    spoil,
)
from tests.support.store.jobs import GIVEN_UP, StoreHarness, new_job, note

now_or_later = pytest.mark.parametrize("delay_ms", [0, 60_000], ids=["now", "later"])


async def queued(harness: StoreHarness) -> str:
    return (await harness.post(max_attempts=2))[0]


async def scheduled(harness: StoreHarness) -> str:
    return (await harness.post(delay_ms=60_000, schedule_limit=9, max_attempts=2))[0]


async def retrying(harness: StoreHarness) -> str:
    lease = await harness.running()
    await harness.retry(lease, 60_000)
    return lease.job_id


async def running(harness: StoreHarness) -> str:
    return (await harness.running()).job_id


@parts("job", "events", "lease", "scheduled", "queue")
@pytest.mark.parametrize("make", [queued, scheduled, retrying, running])
async def test_cancel(
    harness: StoreHarness, make: Callable[[StoreHarness], Awaitable[str]], part: str
) -> None:
    other = await bystander(harness)
    job_id = await make(harness)
    operate = partial(harness.cancel, job_id)
    must_fail = part in OF_THE_JOB
    answer = await all_or_nothing(harness, part, job_id, other, operate, must_fail=must_fail)
    assert answer is (Answer.CANCELING if make is running else Answer.CANCELED)
    last = b"canceling" if make is running else b"canceled"
    assert (await harness.types(job_id))[-1] == last
    if make is not running:
        assert await harness.status(job_id) == b"canceled"
        assert await harness.held(job_id) == {}
    if part != "scheduled":
        assert await harness.client.zcard(harness.keys.scheduled) == 0
    if part != "queue":
        assert await harness.pending() == (2 if make is running else 1)


@parts("job", "events", "lease", "scheduled", "queue", "idempotency")
@now_or_later
async def test_enqueue(harness: StoreHarness, delay_ms: int, part: str) -> None:
    """I9: a refused request leaves no key, and above all no job that is not queued."""
    job = new_job(
        delay_ms=delay_ms, schedule_limit=9, max_attempts=2,
        idempotency_key="k", idempotency_ttl_s=60, fingerprint="f",
    )  # fmt: skip
    other = await bystander(harness)
    matters = part in (*OF_THE_JOB, "idempotency") or part == ("scheduled" if delay_ms else "queue")
    operate = partial(harness.store.enqueue, job, "workers", 200)
    outcome = await all_or_nothing(harness, part, job.job_id, other, operate, must_fail=matters)
    assert outcome == (job.job_id, False)
    assert len(await harness.job(job.job_id)) == 9
    assert (await harness.held(job.job_id))[b"max_attempts"] == b"2"
    if delay_ms:
        assert await harness.client.zcard(harness.keys.scheduled) == 1
    else:
        assert job.job_id.encode() in [fields[b"job_id"] for fields in await harness.queued()]


async def test_a_failed_enqueue_affects_no_other_record(harness: StoreHarness) -> None:
    jobs = [
        new_job(idempotency_key=f"k{n}", idempotency_ttl_s=60, fingerprint="f") for n in range(9)
    ]
    await harness.client.rpush(harness.keys.idempotency("k4"), "a list")
    outcomes = await asyncio.gather(
        *(harness.store.enqueue(job, "workers", 200) for job in jobs), return_exceptions=True
    )
    failed = outcomes.pop(4)
    assert isinstance(failed, CorruptKey)
    assert "WRONGTYPE" in str(failed)
    assert [outcome.job_id for outcome in outcomes] == [job.job_id for job in jobs[:4] + jobs[5:]]
    assert await harness.client.xlen(harness.keys.queue) == 8


async def due_jobs(harness: StoreHarness) -> list[str]:
    jobs = await harness.post(3, delay_ms=60_000, schedule_limit=9)
    for job_id in jobs:
        await harness.client.zadd(harness.keys.scheduled, {job_id: 1})
    return jobs


@parts("scheduled", "queue")
async def test_promote(harness: StoreHarness, part: str) -> None:
    other = await bystander(harness)
    jobs = await due_jobs(harness)
    length = await harness.client.xlen(harness.keys.queue)

    async def operate() -> Any:
        outcomes = await harness.queue.promote(jobs)
        failed = [outcome for outcome in outcomes if isinstance(outcome, CorruptKey)]
        return failed[0] if failed else {outcome.answer for outcome in outcomes}

    answers = await all_or_nothing(harness, part, jobs[0], other, operate, must_fail=True)
    assert answers == {Answer.OK}
    assert await harness.client.xlen(harness.keys.queue) == length + 3


async def test_promote_removes_keys_that_are_not_jobs(harness: StoreHarness) -> None:
    """It would stay due for ever, and block others."""
    jobs = await due_jobs(harness)
    await spoil(harness, harness.keys.job(jobs[1]))
    outcomes = await harness.queue.promote(jobs)
    assert [outcome.answer for outcome in outcomes] == [Answer.OK, Answer.MISSING, Answer.OK]
    assert await harness.client.get(harness.keys.job(jobs[1])) == b"a string"
    assert await harness.client.xlen(harness.keys.queue) == 2
    assert await harness.client.zcard(harness.keys.scheduled) == 0


@parts("job", "events", "letters", "scheduled", "queue")
@now_or_later
async def test_redrive(harness: StoreHarness, delay_ms: int, part: str) -> None:
    """Both or neither: a job that is not queued would be lost, as the next call says `created`."""
    other = await bystander(harness)
    await harness.finish(await harness.running(), GIVEN_UP)
    [letter] = await harness.letters()
    job_id = harness.queue.redriven_job_id(letter.id)
    wanted = DeadLetterRedrive(letter.id, job_id, "chat", "{}", 77, delay_ms)
    length = await harness.client.xlen(harness.keys.queue)
    matters = part in ("job", "events", "letters") or part == ("scheduled" if delay_ms else "queue")
    operate = partial(harness.queue.redrive, wanted, 9)
    answer = await all_or_nothing(harness, part, job_id, other, operate, must_fail=matters)
    assert answer is Answer.CREATED
    assert await harness.letters() == []
    assert len(await harness.job(job_id)) == 9
    if delay_ms:
        assert await harness.client.zscore(harness.keys.scheduled, job_id)
    else:
        assert await harness.client.xlen(harness.keys.queue) == length + 1


@parts("letters", "queue", "job", "events")
async def test_dead_letter(harness: StoreHarness, part: str) -> None:
    """If keys of the job exist, no error is written; the message is dead-lettered nevertheless."""
    other = await bystander(harness)
    job_id = str(uuid.uuid4())
    fields = {b"job_id": job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    await harness.client.xadd(harness.keys.queue, fields)
    [message_id] = await harness.take()
    operate = partial(harness.dead_letter, message_id, fields)
    must_fail = part in ("letters", "queue")
    answer = await all_or_nothing(harness, part, job_id, other, operate, must_fail=must_fail)
    if must_fail:
        assert answer is Answer.EXPIRED
        assert await harness.status(job_id) == b"error"
    else:
        assert answer is Answer.OK
        assert await harness.client.get(key_of(harness, part, job_id)) == b"a string"
        assert await harness.client.exists(*harness.names(job_id, "job", "events")) == 1
    assert await harness.pending() == 1


async def test_trim_and_remove_idle_consumers_next_to_work(harness: StoreHarness) -> None:
    other = await bystander(harness)
    await spoil(harness, harness.keys.queue)
    outcomes = await asyncio.gather(
        harness.queue.trim(),
        harness.queue.remove_idle_consumers("workers", 0),
        harness.emit(other, 1, [note("x")]),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1:] == [0, Answer.OK]
    assert await harness.client.get(harness.keys.queue) == b"a string"
