"""ENQUEUE: a job is accepted completely, or nothing changes."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import IdempotencyConflict, QueueFull
from tests.support.store.jobs import StoreHarness, new_job, shared_keys


async def test_writes_the_contract_and_nothing_else(harness: StoreHarness) -> None:
    payload = b'{"a":"\xff\xfe\x00\r\n' + "ü€𝄞".encode() + b'"}'
    job = new_job(ttl_s=77, payload=payload)
    assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
    record = await harness.job(job.job_id)
    created = record[b"created_ts"]
    message = {b"job_id": job.job_id.encode(), b"task": b"chat", b"payload": payload}
    times = {b"created_ts": created, b"updated_ts": created, b"ttl_s": b"77"}
    assert record == {**message, **times, b"status": b"queued", b"result": b"", b"error": b""}
    assert 0 <= await harness.now_ms() - int(created) < 60_000
    assert await harness.events(job.job_id) == [
        {b"type": b"queued", b"ts": created, b"step": b"gateway.enqueue", b"data": b"{}"}
    ]
    [fields] = await harness.queued()
    assert list(fields.items()) == list(message.items())
    await harness.check_ttls(job.job_id, 77, "job", "events")
    assert len(await harness.client.keys("*")) == 3 + len(shared_keys(harness.keys))
    async with harness.unchanged():
        assert await harness.store.enqueue(job, "workers", 200) == (job.job_id, False)
        # Not even if the queue has become full meanwhile: the request was accepted.
        assert await harness.store.enqueue(job, "workers", 1) == (job.job_id, False)


async def test_jobs_queue_in_order_and_stop_exactly_at_the_limit(harness: StoreHarness) -> None:
    jobs = [new_job() for _ in range(150)]
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 1000) for job in jobs))
    queued = [fields[b"job_id"].decode() for fields in await harness.queued()]
    assert queued == [job.job_id for job in jobs]
    outcomes = await asyncio.gather(
        *(harness.store.enqueue(new_job(), "workers", 157) for _ in range(30)),
        return_exceptions=True,
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, QueueFull)]
    assert len(refusals) == 23
    assert {refusal.backlog for refusal in refusals} == {157}
    assert await harness.client.xlen(harness.keys.queue) == 157
    assert len(await harness.client.keys(harness.keys.job("*"))) == 314


def keyed(**changes: object) -> object:
    fields = {"idempotency_key": "k", "idempotency_ttl_s": 500, "fingerprint": "f1"}
    return new_job(**{**fields, **changes})


async def test_an_idempotency_key_creates_one_job(harness: StoreHarness) -> None:
    first = keyed()
    assert await harness.store.enqueue(first, "workers", 200) == (first.job_id, False)
    assert await harness.client.get(harness.keys.idempotency("k")) == first.job_id.encode()
    assert 490 < await harness.client.ttl(harness.keys.idempotency("k")) <= 500
    assert await harness.without_ttl() == []
    async with harness.unchanged():
        assert await harness.store.enqueue(keyed(), "workers", 200) == (first.job_id, True)
        assert await harness.store.enqueue(keyed(), "workers", 1) == (first.job_id, True)
        # The same call again is a lost reply, not a second request.
        assert await harness.store.enqueue(first, "workers", 200) == (first.job_id, False)
        with pytest.raises(IdempotencyConflict):
            await harness.store.enqueue(keyed(fingerprint="f2"), "workers", 200)
    # A third-party key without a fingerprint is replayed.
    await harness.client.set(harness.keys.idempotency("x"), "made-elsewhere", ex=60)
    foreign = keyed(idempotency_key="x")
    assert await harness.store.enqueue(foreign, "workers", 200) == ("made-elsewhere", True)
    # Of concurrent requests one creates a job.
    accepted = await asyncio.gather(
        *(harness.store.enqueue(keyed(idempotency_key="many"), "workers", 200) for _ in range(50))
    )
    assert len({job_id for job_id, _ in accepted}) == 1
    assert sum(not replayed for _, replayed in accepted) == 1
    assert await harness.client.xlen(harness.keys.queue) == 2


async def refused(harness: StoreHarness, limit: int) -> int:
    """The backlog with which a request is refused; checks that nothing was written (I9)."""
    async with harness.unchanged():
        with pytest.raises(QueueFull) as caught:
            await harness.store.enqueue(keyed(idempotency_key="r"), "workers", limit)
    return caught.value.backlog


async def accepted(harness: StoreHarness, limit: int) -> None:
    await harness.store.enqueue(new_job(), "workers", limit)


async def test_without_a_group_the_whole_stream_counts(harness: StoreHarness) -> None:
    assert await refused(harness, 0) == 0
    assert await harness.snapshot() == {}  # a refusal does not create the queue
    for _ in range(3):
        await accepted(harness, 3)
    assert await refused(harness, 3) == 3
    assert await refused(harness, 1) == 3
    await harness.client.xgroup_create(harness.keys.queue, "auditors", id="$")
    assert await refused(harness, 3) == 3  # another group does not count


#: Every value of acked, pending and waiting meets every value of the others.
PAIRS = [(0, 0, 0), (0, 1, 1), (0, 10, 10), (1, 0, 1), (1, 1, 10), (1, 10, 0)]
PAIRS += [(30, 0, 10), (30, 1, 0), (30, 10, 1)]


@pytest.mark.parametrize(("acked", "pending", "waiting"), PAIRS)
async def test_backlog_is_pending_plus_undelivered(
    harness: StoreHarness, acked: int, pending: int, waiting: int
) -> None:
    await harness.group()
    jobs = [new_job() for _ in range(acked + pending + waiting)]
    await asyncio.gather(*(harness.store.enqueue(job, "workers", 10**6) for job in jobs))
    taken = await harness.take(acked + pending) if acked + pending else []
    if acked:
        # Any of the delivered ones, not only the oldest.
        await harness.client.xack(harness.keys.queue, "workers", *taken[-acked:])
    backlog = pending + waiting
    if backlog:
        assert await refused(harness, backlog) == backlog
        assert await refused(harness, 1) == backlog
    await accepted(harness, backlog + 1)
    assert await refused(harness, backlog + 1) == backlog + 1


async def test_the_backlog_is_exact_after_deletions_and_trimming(
    harness: StoreHarness,
) -> None:
    await harness.group()
    await harness.post(6)
    first, _ = await harness.take(2)
    await harness.client.xack(harness.keys.queue, "workers", first)
    entries = [entry_id for entry_id, _ in await harness.client.xrange(harness.keys.queue)]
    await harness.client.xdel(harness.keys.queue, entries[3])
    if harness.backend.name == "redis-system":
        [group] = await harness.client.xinfo_groups(harness.keys.queue)
        assert group["lag"] is None
    assert await refused(harness, 4) == 4  # one pending, and three of four undelivered ones
    await accepted(harness, 5)
    await harness.client.delete(harness.keys.queue)
    await harness.group()
    await harness.post(80)
    taken = await harness.take(60)
    await harness.client.xack(harness.keys.queue, "workers", *taken[:50])
    removed = await harness.queue.trim()
    assert removed > 0 or not harness.backend.is_real  # fakeredis trims whole hundreds
    assert await refused(harness, 30) == 30
    await accepted(harness, 31)
