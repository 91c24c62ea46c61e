"""ENQUEUE with options and a delay, and PROMOTE: on the queue when due, and once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from common.contracts.queue import Answer
from common.errors import (
    CorruptKey,
    IdempotencyConflict,
    QueueFull,
    ScheduleFull,
    SluiceError,
)
from common.jobs.queue import Promoter, QueueStore
from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import Claim, NewJob
from common.redis.batching import ScriptBatcher
from tests.common.kit import Scene, new_job, shared_keys


def later(**changes: object) -> NewJob:
    return new_job(**{"delay_ms": 60_000, "schedule_limit": 100, **changes})


def keyed(**changes: object) -> NewJob:
    fields = {"idempotency_key": "k", "idempotency_ttl_s": 500, "fingerprint": "f1"}
    return later(**{**fields, **changes})


async def make_due(scene: Scene, *job_ids: str) -> None:
    for job_id in job_ids:
        await scene.client.zadd(scene.keys.scheduled, {job_id: 1}, xx=True)


async def due_job(scene: Scene, **changes: object) -> str:
    job = later(**changes)
    await scene.store.enqueue(job, "workers", 200)
    await make_due(scene, job.job_id)
    return job.job_id


# -- options --------------------------------------------------------------------------------------


async def test_options_are_stored_in_the_lease(scene: Scene) -> None:
    job = new_job(max_attempts=7, options=b'{"timeout_s":1.5}', ttl_s=77)
    assert await scene.store.enqueue(job, "workers", 200) == (job.job_id, False)
    assert len(await scene.job(job.job_id)) == 9
    assert await scene.held(job.job_id) == {
        b"attempt": b"0",
        b"max_attempts": b"7",
        b"options": b'{"timeout_s":1.5}',
    }
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        assert 70 < await scene.client.ttl(key(job.job_id)) <= 77
    assert await scene.types(job.job_id) == [b"queued"]
    assert await scene.client.xlen(scene.keys.queue) == 1
    before = await scene.snapshot()
    assert await scene.store.enqueue(job, "workers", 1) == (job.job_id, False)
    assert await scene.snapshot() == before
    assert len(before) == 6  # job, events, lease and queue; counts and index


async def test_begin_returns_the_options(scene: Scene) -> None:
    job_id, message_id = await scene.waiting(max_attempts=7, options=b'{"timeout_s":1.5}')
    for _ in range(2):  # its reply was lost
        reply = await scene.begin(job_id, message_id, "t1")
        assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
        assert list(reply.more) == [b"7", b"0", b'{"timeout_s":1.5}']
    held = await scene.held(job_id)
    assert (held[b"max_attempts"], held[b"token"]) == (b"7", b"t1")


async def test_a_plain_job_has_no_lease_before_it_begins(scene: Scene) -> None:
    [job_id] = await scene.post()
    assert await scene.held(job_id) == {}


@pytest.mark.parametrize(
    ("own", "handlers", "workers", "expected"),
    [(2, 4, 5, 2), (None, 3, 5, 3), (None, "", 2, 2), (4, 1, 1, 4)],
)
async def test_which_limit_of_attempts_counts(
    scene: Scene, own: int | None, handlers: int | str, workers: int, expected: int
) -> None:
    """That of the request, else of the handler, else of the worker."""
    scene.worker = scene.worker._replace(max_attempts=workers)
    job_id, message_id = await scene.waiting(max_attempts=own)
    for number in range(expected + 1):
        claim = Claim(job_id, message_id, f"t{number}", max_attempts=handlers)
        [reply] = await scene.store.begin([claim], scene.worker)
        assert reply.answer is (Answer.RUN if number < expected else Answer.EXHAUSTED)
        await scene.client.hset(scene.keys.lease(job_id), "deadline_ms", "1")


async def test_a_full_queue_refuses_options_without_writing(scene: Scene) -> None:
    with pytest.raises(QueueFull):
        await scene.store.enqueue(new_job(max_attempts=7, options=b"{}"), "workers", 0)
    assert await scene.snapshot() == {}


async def test_options_and_an_idempotency_key_use_separate_keys(scene: Scene) -> None:
    first = keyed(delay_ms=0, max_attempts=3)
    plain = new_job(idempotency_key="p", idempotency_ttl_s=500, fingerprint="f2")
    await asyncio.gather(
        *(scene.store.enqueue(job, "workers", 200) for job in (first, plain, later(), new_job()))
    )
    assert await scene.client.get(scene.keys.idempotency("k")) == first.job_id.encode()
    assert await scene.client.get(scene.keys.fingerprint("k")) == b"f1"
    assert await scene.client.get(scene.keys.idempotency("p")) == plain.job_id.encode()
    assert (await scene.held(first.job_id))[b"max_attempts"] == b"3"
    assert await scene.client.zcard(scene.keys.scheduled) == 1
    assert await scene.client.xlen(scene.keys.queue) == 3
    assert await scene.without_ttl() == []


# -- delay ----------------------------------------------------------------------------------------


async def test_a_delayed_job_is_accepted_but_not_queued(scene: Scene) -> None:
    job = later(delay_ms=90_001, ttl_s=77)
    assert await scene.store.enqueue(job, "workers", 200) == (job.job_id, False)
    record = await scene.job(job.job_id)
    assert (record[b"status"], record[b"ttl_s"]) == (b"queued", b"77")
    due = int(record[b"created_ts"]) + 90_001
    assert await scene.client.zrange(scene.keys.scheduled, 0, -1, withscores=True) == [
        (job.job_id.encode(), due)
    ]
    assert not await scene.client.exists(scene.keys.queue)
    events = await scene.events(job.job_id)
    assert [event[b"type"] for event in events] == [b"queued", b"scheduled"]
    assert events[1][b"step"] == b"gateway.schedule"
    assert events[1][b"data"] == b'{"run_at_ms":%d}' % due
    for key in (scene.keys.job, scene.keys.events):
        assert 70 < await scene.client.ttl(key(job.job_id)) - 91 <= 77
    assert len(await scene.snapshot()) == 5  # job, events and schedule; counts and index


async def test_options_live_as_long_as_the_delayed_job(scene: Scene) -> None:
    job = later(delay_ms=7_200_000, ttl_s=77, max_attempts=2)
    await scene.store.enqueue(job, "workers", 200)
    assert 70 < await scene.client.ttl(scene.keys.lease(job.job_id)) - 7200 <= 77


async def test_the_backlog_does_not_refuse_delayed_jobs(scene: Scene) -> None:
    await scene.post(3)
    job = later()
    assert await scene.store.enqueue(job, "workers", 0) == (job.job_id, False)


async def test_the_schedule_has_a_limit(scene: Scene) -> None:
    jobs = [later(schedule_limit=3, max_attempts=2) for _ in range(8)]
    outcomes = await asyncio.gather(
        *(scene.store.enqueue(job, "workers", 200) for job in jobs), return_exceptions=True
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, ScheduleFull)]
    assert len(refusals) == 5
    assert {refusal.waiting for refusal in refusals} == {3}
    assert await scene.client.zcard(scene.keys.scheduled) == 3
    before = await scene.snapshot()
    with pytest.raises(ScheduleFull):
        await scene.store.enqueue(keyed(schedule_limit=3), "workers", 200)
    assert await scene.snapshot() == before  # I9: not even the idempotency key
    # A request accepted before the limit was reached gets the same answer again.
    assert await scene.store.enqueue(jobs[0], "workers", 200) == (jobs[0].job_id, False)
    # Without a delay this limit does not apply.
    await scene.store.enqueue(new_job(), "workers", 200)


async def test_a_repeat_after_a_lost_reply_changes_nothing(scene: Scene) -> None:
    job = later(max_attempts=2)
    await scene.store.enqueue(job, "workers", 200)
    before = await scene.snapshot()
    assert await scene.store.enqueue(job, "workers", 200) == (job.job_id, False)
    assert await scene.snapshot() == before
    # Nor does it schedule the job again after it was promoted.
    await make_due(scene, job.job_id)
    await scene.queue.promote([job.job_id])
    before = await scene.snapshot()
    assert await scene.store.enqueue(job, "workers", 200) == (job.job_id, False)
    assert await scene.snapshot() == before


async def test_an_idempotency_key_creates_one_delayed_job(scene: Scene) -> None:
    first = keyed()
    assert await scene.store.enqueue(first, "workers", 200) == (first.job_id, False)
    before = await scene.snapshot()
    assert await scene.store.enqueue(keyed(), "workers", 200) == (first.job_id, True)
    assert await scene.store.enqueue(keyed(schedule_limit=0), "workers", 0) == (first.job_id, True)
    with pytest.raises(IdempotencyConflict):
        await scene.store.enqueue(keyed(fingerprint="f2"), "workers", 200)
    assert await scene.snapshot() == before
    assert await scene.without_ttl() == []


# -- promote --------------------------------------------------------------------------------------


async def test_a_due_job_goes_on_the_queue(scene: Scene) -> None:
    payload = b'{"a":"\xff\x00"}'
    job_id = await due_job(scene, payload=payload, task="plan")
    before = await scene.job(job_id), await scene.events(job_id)
    [outcome] = await scene.queue.promote([job_id])
    assert outcome.answer is Answer.OK
    [(_, fields)] = await scene.client.xrange(scene.keys.queue)
    assert list(fields.items()) == [
        (b"job_id", job_id.encode()),
        (b"task", b"plan"),
        (b"payload", payload),
    ]
    assert (await scene.job(job_id), await scene.events(job_id)) == before
    assert not await scene.client.exists(scene.keys.scheduled)
    after = await scene.snapshot()
    [outcome] = await scene.queue.promote([job_id])
    assert outcome.answer is Answer.ALREADY
    assert await scene.snapshot() == after


async def test_options_are_kept_when_a_job_is_promoted(scene: Scene) -> None:
    await scene.group()
    job_id = await due_job(scene, max_attempts=3, ttl_s=90)
    await scene.queue.promote([job_id])
    [message_id] = await scene.take()
    reply = await scene.begin(job_id, message_id, "t1")
    assert (reply.answer, list(reply.more)) == (Answer.RUN, [b"3", b"0", b""])
    assert 80 < await scene.client.ttl(scene.keys.job(job_id)) <= 90


async def test_two_promoters_queue_a_job_once(scene: Scene) -> None:
    job_ids = [await due_job(scene) for _ in range(20)]
    other = ScriptBatcher(scene.backend.wire(), scene.keys, CORE_SCRIPT, retry_for_s=5.0)
    second = QueueStore(scene.backend.client(), scene.keys, other)
    try:
        outcomes = await asyncio.gather(scene.queue.promote(job_ids), second.promote(job_ids))
    finally:
        await other.close()
    for pair in zip(*outcomes):
        assert sorted(outcome.answer.value for outcome in pair) == ["already", "ok"]
    queued = [
        fields[b"job_id"].decode() for _, fields in await scene.client.xrange(scene.keys.queue)
    ]
    assert sorted(queued) == sorted(job_ids)


async def test_a_job_that_is_not_due_waits(scene: Scene) -> None:
    job = later(delay_ms=60_000)
    await scene.store.enqueue(job, "workers", 200)
    before = await scene.snapshot()
    [outcome] = await scene.queue.promote([job.job_id])
    assert outcome.answer is Answer.WAIT
    assert 50_000 < int(outcome.value) <= 60_000
    assert await scene.snapshot() == before


async def test_an_expired_job_is_removed_from_the_schedule(scene: Scene) -> None:
    job_id = await due_job(scene)
    await scene.client.delete(scene.keys.job(job_id), scene.keys.events(job_id))
    [outcome] = await scene.queue.promote([job_id])
    assert outcome.answer is Answer.MISSING
    assert set(await scene.snapshot()) == {key.encode() for key in shared_keys(scene.keys)}


@pytest.mark.parametrize("status", ["done", "error", "canceled", "running"])
async def test_a_job_not_queued_any_more_leaves_the_schedule(scene: Scene, status: str) -> None:
    job_id = await due_job(scene)
    await scene.client.hset(scene.keys.job(job_id), "status", status)
    [outcome] = await scene.queue.promote([job_id])
    assert outcome.answer is Answer.TERMINAL
    assert not await scene.client.exists(scene.keys.queue, scene.keys.scheduled)


async def test_each_job_gets_its_own_answer(scene: Scene) -> None:
    ended, gone, due = [await due_job(scene) for _ in range(3)]
    early = later()
    await scene.store.enqueue(early, "workers", 200)
    await scene.client.hset(scene.keys.job(ended), "status", "canceled")
    await scene.client.delete(scene.keys.job(gone))
    outcomes = await scene.queue.promote([ended, gone, due, early.job_id, "nobody", due])
    assert [outcome.answer for outcome in outcomes] == [
        *(Answer.TERMINAL, Answer.MISSING, Answer.OK),
        *(Answer.WAIT, Answer.ALREADY, Answer.ALREADY),
    ]
    assert await scene.client.zrange(scene.keys.scheduled, 0, -1) == [early.job_id.encode()]


# -- the promoter ---------------------------------------------------------------------------------


async def test_due_jobs_returns_due_ids_and_the_next_time(scene: Scene) -> None:
    assert await scene.queue.due_jobs(10) == ([], None)
    ready = [await due_job(scene) for _ in range(3)]
    await scene.store.enqueue(later(delay_ms=40_000), "workers", 200)
    found = await scene.queue.due_jobs(10)
    assert sorted(found.job_ids) == sorted(ready)
    assert found.next_ms is not None
    assert 30_000 < found.next_ms <= 40_000
    assert len((await scene.queue.due_jobs(2)).job_ids) == 2


async def test_the_promoter_follows_the_schedule(scene: Scene) -> None:
    promoter = Promoter(scene.queue)
    assert await promoter.run_once() == 0.5
    job_id = await due_job(scene)
    await scene.store.enqueue(later(delay_ms=200), "workers", 200)
    assert await promoter.run_once() == 0.0
    assert await scene.client.xlen(scene.keys.queue) == 1
    assert (await scene.client.xrange(scene.keys.queue))[0][1][b"job_id"] == job_id.encode()
    assert 0.0 <= await promoter.run_once() <= 0.2


async def test_a_schedule_of_the_wrong_type_has_nothing_due(scene: Scene) -> None:
    """The promoter may get an error, as long as it does not retry at once."""
    await scene.client.set(scene.keys.scheduled, "a string")
    with contextlib.suppress(SluiceError):
        assert await scene.queue.due_jobs(10) == ([], None)
    with contextlib.suppress(SluiceError):
        assert await Promoter(scene.queue).run_once() > 0


async def test_a_page_of_corrupt_jobs_does_not_block_the_rest(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay due for ever; those behind them must be promoted nevertheless."""
    monkeypatch.setattr("common.jobs.queue.PROMOTE_PAGE_SIZE", 2)
    for name in ("x1", "x2"):
        await scene.client.set(scene.keys.job(name), "no hash", ex=600)
        await scene.client.zadd(scene.keys.scheduled, {name: 0})
    await due_job(scene)
    promoter = Promoter(scene.queue)
    for _ in range(3):
        with contextlib.suppress(CorruptKey):
            await promoter.run_once()
    assert await scene.client.xlen(scene.keys.queue) == 1
