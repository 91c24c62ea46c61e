"""ENQUEUE with options and a delay, and PROMOTE: on the queue when due, and once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey, IdempotencyConflict, ScheduleFull, SluiceError
from sluice.common.jobs.queue import Promoter, QueueStore
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import Claim, NewJob
from sluice.common.redis.batching import ScriptBatcher
from tests.support.store.jobs import StoreHarness, new_job


def later(**changes: object) -> NewJob:
    return new_job(**{"delay_ms": 60_000, "schedule_limit": 100, **changes})


def keyed(**changes: object) -> NewJob:
    fields = {"idempotency_key": "k", "idempotency_ttl_s": 500, "fingerprint": "f1"}
    return later(**{**fields, **changes})


async def make_due(harness: StoreHarness, *job_ids: str) -> None:
    for job_id in job_ids:
        await harness.client.zadd(harness.keys.scheduled, {job_id: 1}, xx=True)


async def due_job(harness: StoreHarness, **changes: object) -> str:
    job = later(**changes)
    await harness.store.enqueue(job, "workers", 200)
    await make_due(harness, job.job_id)
    return job.job_id


async def test_options_are_stored_in_the_lease_and_returned_by_begin(harness: StoreHarness) -> None:
    job = new_job(max_attempts=7, options=b'{"timeout_s":1.5}', ttl_s=77)
    assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
    assert len(await harness.job(job.job_id)) == 9
    assert await harness.held(job.job_id) == {
        b"attempt": b"0",
        b"max_attempts": b"7",
        b"options": b'{"timeout_s":1.5}',
    }
    await harness.check_ttls(job.job_id, 77)
    assert await harness.types(job.job_id) == [b"queued"]
    assert await harness.client.xlen(harness.keys.queue) == 1
    async with harness.unchanged():
        assert await harness.store.enqueue(job, "workers", 1) == (job.job_id, False)
    assert len(await harness.snapshot()) == 6  # job, events, lease and queue; counts and index
    # A plain job has no lease before it begins.
    [plain] = await harness.post(task="plan")
    assert await harness.held(plain) == {}
    await harness.client.delete(harness.keys.queue)
    job_id, message_id = await harness.waiting(max_attempts=7, options=b'{"timeout_s":1.5}')
    for _ in range(2):  # its reply was lost
        reply = await harness.begin(job_id, message_id, "t1")
        assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
        assert list(reply.more) == [b"7", b"0", b'{"timeout_s":1.5}']
    held = await harness.held(job_id)
    assert (held[b"max_attempts"], held[b"token"]) == (b"7", b"t1")


@pytest.mark.parametrize(
    ("own", "handlers", "workers", "expected"),
    [(2, 4, 5, 2), (None, 3, 5, 3), (None, "", 2, 2), (4, 1, 1, 4)],
)
async def test_which_limit_of_attempts_counts(
    harness: StoreHarness, own: int | None, handlers: int | str, workers: int, expected: int
) -> None:
    """That of the request, else of the handler, else of the worker."""
    harness.worker = harness.worker._replace(max_attempts=workers)
    job_id, message_id = await harness.waiting(max_attempts=own)
    for number in range(expected + 1):
        claim = Claim(job_id, message_id, f"t{number}", max_attempts=handlers)
        [reply] = await harness.store.begin([claim], harness.worker)
        assert reply.answer is (Answer.RUN if number < expected else Answer.EXHAUSTED)
        await harness.client.hset(harness.keys.lease(job_id), "deadline_ms", "1")


async def test_a_delayed_job_is_accepted_but_not_queued(harness: StoreHarness) -> None:
    """Regardless of the backlog."""
    job = later(delay_ms=90_001, ttl_s=77)
    assert await harness.store.enqueue(job, "workers", 0) == (job.job_id, False)
    record = await harness.job(job.job_id)
    assert (record[b"status"], record[b"ttl_s"]) == (b"queued", b"77")
    due = int(record[b"created_ts"]) + 90_001
    assert await harness.client.zrange(harness.keys.scheduled, 0, -1, withscores=True) == [
        (job.job_id.encode(), due)
    ]
    assert not await harness.client.exists(harness.keys.queue)
    events = await harness.events(job.job_id)
    assert [event[b"type"] for event in events] == [b"queued", b"scheduled"]
    assert events[1][b"step"] == b"gateway.schedule"
    assert events[1][b"data"] == b'{"run_at_ms":%d}' % due
    await harness.check_ttls(job.job_id, 77 + 91, "job", "events")
    assert len(await harness.snapshot()) == 5  # job, events and schedule; counts and index
    job = later(delay_ms=7_200_000, ttl_s=77, max_attempts=2)
    await harness.store.enqueue(job, "workers", 200)
    await harness.check_ttls(job.job_id, 77 + 7200)  # with its options
    # A repeat after a lost reply changes nothing.
    async with harness.unchanged():
        assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
    # Nor does it schedule the job again after it was promoted.
    await make_due(harness, job.job_id)
    await harness.queue.promote([job.job_id])
    async with harness.unchanged():
        assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)


async def test_the_schedule_has_a_limit(harness: StoreHarness) -> None:
    jobs = [later(schedule_limit=3, max_attempts=2) for _ in range(8)]
    outcomes = await asyncio.gather(
        *(harness.store.enqueue(job, "workers", 200) for job in jobs), return_exceptions=True
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, ScheduleFull)]
    assert len(refusals) == 5
    assert {refusal.waiting for refusal in refusals} == {3}
    assert await harness.client.zcard(harness.keys.scheduled) == 3
    async with harness.refuses(ScheduleFull):  # I9: not even the idempotency key
        await harness.store.enqueue(keyed(schedule_limit=3), "workers", 200)
    # A request accepted before the limit was reached gets the same answer again.
    assert await harness.store.enqueue(jobs[0], "workers", 200) == (jobs[0].job_id, False)
    # Without a delay this limit does not apply.
    await harness.store.enqueue(new_job(), "workers", 200)


async def test_an_idempotency_key_creates_one_delayed_job(harness: StoreHarness) -> None:
    first = keyed()
    assert await harness.store.enqueue(first, "workers", 200) == (first.job_id, False)
    async with harness.unchanged():
        assert await harness.store.enqueue(keyed(), "workers", 200) == (first.job_id, True)
        full = keyed(schedule_limit=0)
        assert await harness.store.enqueue(full, "workers", 0) == (first.job_id, True)
        with pytest.raises(IdempotencyConflict):
            await harness.store.enqueue(keyed(fingerprint="f2"), "workers", 200)
    assert await harness.without_ttl() == []


async def test_a_due_job_enters_the_queue(harness: StoreHarness) -> None:
    payload = b'{"a":"\xff\x00"}'
    job_id = await due_job(harness, payload=payload, task="plan")
    before = await harness.job(job_id), await harness.events(job_id)
    [outcome] = await harness.queue.promote([job_id])
    assert outcome.answer is Answer.OK
    [fields] = await harness.queued()
    message = {b"job_id": job_id.encode(), b"task": b"plan", b"payload": payload}
    assert list(fields.items()) == list(message.items())
    assert (await harness.job(job_id), await harness.events(job_id)) == before
    assert not await harness.client.exists(harness.keys.scheduled)
    async with harness.unchanged():
        [outcome] = await harness.queue.promote([job_id])
    assert outcome.answer is Answer.ALREADY
    # Its options are kept.
    await harness.client.delete(harness.keys.queue)
    await harness.group()
    job_id = await due_job(harness, max_attempts=3, ttl_s=90)
    await harness.queue.promote([job_id])
    [message_id] = await harness.take()
    reply = await harness.begin(job_id, message_id, "t1")
    assert (reply.answer, list(reply.more)) == (Answer.RUN, [b"3", b"0", b""])
    await harness.check_ttls(job_id, 90, "job")


async def test_two_promoters_queue_a_job_once(harness: StoreHarness) -> None:
    job_ids = [await due_job(harness) for _ in range(20)]
    other = ScriptBatcher(harness.backend.wire(), harness.keys, CORE_SCRIPT, retry_for_s=5.0)
    second = QueueStore(harness.backend.client(), harness.keys, other)
    try:
        outcomes = await asyncio.gather(harness.queue.promote(job_ids), second.promote(job_ids))
    finally:
        await other.close()
    for pair in zip(*outcomes):
        assert sorted(outcome.answer.value for outcome in pair) == ["already", "ok"]
    queued = [fields[b"job_id"].decode() for fields in await harness.queued()]
    assert sorted(queued) == sorted(job_ids)


async def test_an_expired_or_begun_job_leaves_the_schedule(harness: StoreHarness) -> None:
    job_id = await due_job(harness)
    await harness.client.delete(*harness.names(job_id))
    [outcome] = await harness.queue.promote([job_id])
    assert outcome.answer is Answer.MISSING
    assert set(await harness.snapshot()) == {
        harness.keys.counts.encode(),
        harness.keys.index.encode(),
    }
    for status in ("done", "error", "canceled", "running"):
        job_id = await due_job(harness)
        await harness.client.hset(harness.keys.job(job_id), "status", status)
        [outcome] = await harness.queue.promote([job_id])
        assert outcome.answer is Answer.TERMINAL, status
        assert not await harness.client.exists(harness.keys.queue, harness.keys.scheduled)


async def test_each_job_gets_its_own_answer(harness: StoreHarness) -> None:
    ended, gone, due = [await due_job(harness) for _ in range(3)]
    early = later()
    await harness.store.enqueue(early, "workers", 200)
    await harness.client.hset(harness.keys.job(ended), "status", "canceled")
    await harness.client.delete(harness.keys.job(gone))
    outcomes = await harness.queue.promote([ended, gone, due, early.job_id, "nobody", due])
    assert [outcome.answer for outcome in outcomes] == [
        *(Answer.TERMINAL, Answer.MISSING, Answer.OK),
        *(Answer.WAIT, Answer.ALREADY, Answer.ALREADY),
    ]
    assert await harness.client.zrange(harness.keys.scheduled, 0, -1) == [early.job_id.encode()]
    async with harness.unchanged():
        [outcome] = await harness.queue.promote([early.job_id])
    assert outcome.answer is Answer.WAIT
    assert 50_000 < int(outcome.value) <= 60_000


async def test_due_jobs_returns_due_ids_and_the_next_time(harness: StoreHarness) -> None:
    assert await harness.queue.due_jobs(10) == ([], None)
    ready = [await due_job(harness) for _ in range(3)]
    await harness.store.enqueue(later(delay_ms=40_000), "workers", 200)
    found = await harness.queue.due_jobs(10)
    assert sorted(found.job_ids) == sorted(ready)
    assert found.next_ms is not None
    assert 30_000 < found.next_ms <= 40_000
    assert len((await harness.queue.due_jobs(2)).job_ids) == 2
    # With a schedule of the wrong type the promoter may fail, but does not retry at once.
    await harness.client.set(harness.keys.scheduled, "a string")
    with contextlib.suppress(SluiceError):
        assert await harness.queue.due_jobs(10) == ([], None)
    with contextlib.suppress(SluiceError):
        assert await Promoter(harness.queue).run_once() > 0


async def test_the_promoter_follows_the_schedule(harness: StoreHarness) -> None:
    promoter = Promoter(harness.queue)
    assert await promoter.run_once() == 0.5
    job_id = await due_job(harness)
    await harness.store.enqueue(later(delay_ms=200), "workers", 200)
    assert await promoter.run_once() == 0.0
    assert [fields[b"job_id"] for fields in await harness.queued()] == [job_id.encode()]
    assert 0.0 <= await promoter.run_once() <= 0.2


async def test_a_page_of_corrupt_jobs_does_not_block_the_rest(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay due for ever; those behind them must be promoted nevertheless."""
    monkeypatch.setattr("sluice.common.jobs.queue.PROMOTE_PAGE_SIZE", 2)
    for name in ("x1", "x2"):
        await harness.client.set(harness.keys.job(name), "no hash", ex=600)
        await harness.client.zadd(harness.keys.scheduled, {name: 0})
    await due_job(harness)
    promoter = Promoter(harness.queue)
    for _ in range(3):
        with contextlib.suppress(CorruptKey):
            await promoter.run_once()
    assert await harness.client.xlen(harness.keys.queue) == 1
