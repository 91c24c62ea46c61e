"""ENQUEUE: a job is accepted completely, or nothing changes."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import IdempotencyConflict, QueueFull
from tests.common.kit import Scene, new_job, shared_keys


async def test_writes_the_contract_and_nothing_else(scene: Scene) -> None:
    job = new_job(ttl_s=77)
    assert await scene.store.enqueue(job, "workers", 200) == (job.job_id, False)
    record = await scene.job(job.job_id)
    created = record[b"created_ts"]
    assert record == {
        b"job_id": job.job_id.encode(),
        b"task": b"chat",
        b"payload": b'{"text":"hello"}',
        b"status": b"queued",
        b"created_ts": created,
        b"updated_ts": created,
        b"ttl_s": b"77",
        b"result": b"",
        b"error": b"",
    }
    now_s, micros = await scene.client.time()
    assert 0 <= now_s * 1000 + micros // 1000 - int(created) < 60_000
    assert await scene.events(job.job_id) == [
        {b"type": b"queued", b"ts": created, b"step": b"gateway.enqueue", b"data": b"{}"}
    ]
    [(_, fields)] = await scene.client.xrange(scene.keys.queue)
    assert list(fields.items()) == [
        (b"job_id", job.job_id.encode()),
        (b"task", b"chat"),
        (b"payload", b'{"text":"hello"}'),
    ]
    for key in (scene.keys.job(job.job_id), scene.keys.events(job.job_id)):
        assert 70 < await scene.client.ttl(key) <= 77
    assert len(await scene.client.keys("*")) == 3 + len(shared_keys(scene.keys))


async def test_payload_is_stored_byte_by_byte(scene: Scene) -> None:
    payload = b'{"a":"\xff\xfe\x00\r\n' + "ü€𝄞".encode() + b'"}'
    [job_id] = await scene.post(payload=payload)
    assert (await scene.job(job_id))[b"payload"] == payload
    [(_, fields)] = await scene.client.xrange(scene.keys.queue)
    assert fields[b"payload"] == payload


async def test_the_same_job_id_again_changes_nothing(scene: Scene) -> None:
    job = new_job()
    await scene.store.enqueue(job, "workers", 200)
    before = await scene.snapshot()
    assert await scene.store.enqueue(job, "workers", 200) == (job.job_id, False)
    # Not even if the queue has become full meanwhile: the request was accepted.
    assert await scene.store.enqueue(job, "workers", 1) == (job.job_id, False)
    assert await scene.snapshot() == before


async def test_jobs_queue_in_the_order_of_their_calls(scene: Scene) -> None:
    jobs = [new_job() for _ in range(150)]
    await asyncio.gather(*(scene.store.enqueue(job, "workers", 1000) for job in jobs))
    entries = await scene.client.xrange(scene.keys.queue)
    queued = [fields[b"job_id"].decode() for _, fields in entries]
    assert queued == [job.job_id for job in jobs]


# -- idempotency ------------------------------------------------------------------------------


def keyed(**changes: object) -> object:
    fields = {"idempotency_key": "k", "idempotency_ttl_s": 500, "fingerprint": "f1"}
    return new_job(**{**fields, **changes})


async def test_an_idempotency_key_creates_one_job(scene: Scene) -> None:
    first = keyed()
    assert await scene.store.enqueue(first, "workers", 200) == (first.job_id, False)
    assert await scene.client.get(scene.keys.idempotency("k")) == first.job_id.encode()
    assert 490 < await scene.client.ttl(scene.keys.idempotency("k")) <= 500
    assert await scene.without_ttl() == []
    before = await scene.snapshot()
    assert await scene.store.enqueue(keyed(), "workers", 200) == (first.job_id, True)
    assert await scene.store.enqueue(keyed(), "workers", 1) == (first.job_id, True)
    # The same call again is a lost reply, not a second request.
    assert await scene.store.enqueue(first, "workers", 200) == (first.job_id, False)
    with pytest.raises(IdempotencyConflict):
        await scene.store.enqueue(keyed(fingerprint="f2"), "workers", 200)
    assert await scene.snapshot() == before


async def test_a_third_party_key_without_fingerprint_is_replayed(scene: Scene) -> None:
    await scene.client.set(scene.keys.idempotency("k"), "made-elsewhere", ex=60)
    assert await scene.store.enqueue(keyed(), "workers", 200) == ("made-elsewhere", True)


async def test_fifty_concurrent_requests_with_one_key_create_one_job(scene: Scene) -> None:
    accepted = await asyncio.gather(
        *(scene.store.enqueue(keyed(), "workers", 200) for _ in range(50))
    )
    assert len({job_id for job_id, _ in accepted}) == 1
    assert sum(not replayed for _, replayed in accepted) == 1
    assert await scene.client.xlen(scene.keys.queue) == 1


# -- backpressure -----------------------------------------------------------------------------


async def refused(scene: Scene, limit: int) -> int:
    """The backlog with which a request is refused; checks that nothing was written (I9)."""
    before = await scene.snapshot()
    with pytest.raises(QueueFull) as caught:
        await scene.store.enqueue(keyed(idempotency_key="r"), "workers", limit)
    assert await scene.snapshot() == before
    return caught.value.backlog


async def accepted(scene: Scene, limit: int) -> None:
    await scene.store.enqueue(new_job(), "workers", limit)


async def test_without_a_group_the_whole_stream_counts(scene: Scene) -> None:
    for _ in range(3):
        await accepted(scene, 3)
    assert await refused(scene, 3) == 3
    assert await refused(scene, 1) == 3


async def test_a_refusal_does_not_create_the_queue(scene: Scene) -> None:
    assert await refused(scene, 0) == 0
    assert await scene.snapshot() == {}


async def test_another_group_does_not_count(scene: Scene) -> None:
    await scene.post(2)
    await scene.client.xgroup_create(scene.keys.queue, "auditors", id="$")
    assert await refused(scene, 2) == 2


@pytest.mark.parametrize("acked", [0, 1, 30])
@pytest.mark.parametrize("pending", [0, 1, 10])
@pytest.mark.parametrize("waiting", [0, 1, 10])
async def test_backlog_is_pending_plus_undelivered(
    scene: Scene, acked: int, pending: int, waiting: int
) -> None:
    await scene.group()
    jobs = [new_job() for _ in range(acked + pending + waiting)]
    await asyncio.gather(*(scene.store.enqueue(job, "workers", 10**6) for job in jobs))
    taken = await scene.take(acked + pending) if acked + pending else []
    if acked:
        # Any of the delivered ones, not only the oldest.
        await scene.client.xack(scene.keys.queue, "workers", *taken[-acked:])
    backlog = pending + waiting
    if backlog:
        assert await refused(scene, backlog) == backlog
        assert await refused(scene, 1) == backlog
    await accepted(scene, backlog + 1)
    assert await refused(scene, backlog + 1) == backlog + 1


async def test_the_backlog_is_exact_if_deletions_made_the_lag_unknown(scene: Scene) -> None:
    await scene.group()
    await scene.post(6)
    first, _ = await scene.take(2)
    await scene.client.xack(scene.keys.queue, "workers", first)
    entries = [entry_id for entry_id, _ in await scene.client.xrange(scene.keys.queue)]
    await scene.client.xdel(scene.keys.queue, entries[3])
    if scene.backend.name == "redis-system":
        [group] = await scene.client.xinfo_groups(scene.keys.queue)
        assert group["lag"] is None
    assert await refused(scene, 4) == 4  # one pending, and three of four undelivered ones
    await accepted(scene, 5)


async def test_backlog_after_the_queue_was_trimmed(scene: Scene) -> None:
    await scene.group()
    await scene.post(80)
    taken = await scene.take(60)
    await scene.client.xack(scene.keys.queue, "workers", *taken[:50])
    removed = await scene.queue.trim()
    assert removed > 0 or not scene.backend.is_real  # fakeredis trims whole hundreds
    assert await refused(scene, 30) == 30
    await accepted(scene, 31)


async def test_many_jobs_in_one_call_stop_exactly_at_the_limit(scene: Scene) -> None:
    outcomes = await asyncio.gather(
        *(scene.store.enqueue(new_job(), "workers", 7) for _ in range(30)), return_exceptions=True
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, QueueFull)]
    assert len(refusals) == 23
    assert {refusal.backlog for refusal in refusals} == {7}
    assert await scene.client.xlen(scene.keys.queue) == 7
    assert len(await scene.client.keys(scene.keys.job("*"))) == 14
