"""RELEASE: jobs of a stopping worker continue elsewhere, at once and without using an attempt."""

from __future__ import annotations

import pytest

from common.contracts.jobs import LEASE_MAX_MS
from common.contracts.queue import Answer
from tests.common.kit import DONE, WHY, Scene, note


async def test_ok_queues_the_job_again_and_keeps_its_message(scene: Scene) -> None:
    lease = await scene.running(ttl_s=90)
    before = await scene.job(lease.job_id)
    assert await scene.release(lease) is Answer.OK
    after = await scene.job(lease.job_id)
    assert after.pop(b"status") == b"queued"
    updated = after.pop(b"updated_ts")
    before.pop(b"status")
    before.pop(b"updated_ts")
    assert after == before
    assert (await scene.events(lease.job_id))[2:] == [
        {b"type": b"released", b"ts": updated, b"step": b"worker.release", b"data": WHY}
    ]
    held = await scene.held(lease.job_id)
    assert (held[b"attempt"], held[b"released"]) == (b"1", b"1")
    assert held[b"message_id"] == lease.message_id.encode()
    assert held[b"deadline_ms"] == b"0"
    assert b"not_before_ms" not in held
    assert await scene.pending() == 1
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        assert 80 < await scene.client.ttl(key(lease.job_id)) <= 90
    assert (await scene.store.counts()).ended == 0


@pytest.mark.parametrize("lease_ms", [1, 30_000, LEASE_MAX_MS])
async def test_any_worker_may_claim_the_message_at_once(scene: Scene, lease_ms: int) -> None:
    lease = await scene.running()
    assert await scene.autoclaim("c2", 30_000) == []
    await scene.release(lease)
    assert (await scene.pending_entry())["times_delivered"] == 1
    assert await scene.autoclaim("c2", lease_ms) == [lease.message_id]
    reply = await scene.begin(lease.job_id, lease.message_id, "t2")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 2)
    assert [int(reply.more[1])] == [1]


async def test_a_repeat_after_a_lost_reply_changes_nothing(scene: Scene) -> None:
    lease = await scene.running()
    unsent = {"first": 1, "events": [note("a")]}
    assert await scene.release(lease, **unsent) is Answer.OK
    before = await scene.snapshot()
    for _ in range(2):
        assert await scene.release(lease, **unsent) is Answer.OK
    assert await scene.snapshot() == before
    assert await scene.types(lease.job_id) == [b"queued", b"running", b"message", b"released"]


async def test_a_repeat_does_not_take_the_message_from_its_new_owner(scene: Scene) -> None:
    lease = await scene.running()
    await scene.release(lease)
    await scene.claim_for("c2", lease.message_id)
    assert await scene.release(lease) is Answer.OK
    entry = await scene.pending_entry()
    assert entry["consumer"] == b"c2"
    assert entry["time_since_delivered"] < 60_000


async def test_a_released_attempt_writes_nothing_more(scene: Scene) -> None:
    first = await scene.running()
    await scene.release(first)
    await scene.writes_nothing(first)
    second = await scene.again(first, "t2")
    await scene.writes_nothing(first)
    assert await scene.release(first) is Answer.LOST
    assert await scene.retry(first) is Answer.LOST
    assert await scene.finish(second) is Answer.OK
    await scene.writes_nothing(first)


async def test_a_release_does_not_count_as_an_attempt(scene: Scene) -> None:
    lease = await scene.running(max_attempts=1)
    for number in range(2, 12):
        assert await scene.release(lease) is Answer.OK
        lease = await scene.again(lease, f"t{number}")
    assert lease.attempt == 11
    assert (await scene.held(lease.job_id))[b"released"] == b"10"
    # But an expired lease does.
    await scene.expire(lease)
    reply = await scene.begin(lease.job_id, lease.message_id, "last")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, 11)
    assert await scene.pending() == 0


async def test_a_failure_after_a_release_still_counts(scene: Scene) -> None:
    lease = await scene.running(max_attempts=2)
    await scene.release(lease)
    second = await scene.again(lease, "t2")
    await scene.retry(second)
    third = await scene.again(second, "t3")
    await scene.retry(third)
    reply = await scene.begin(lease.job_id, lease.message_id, "t4")
    assert reply.answer is Answer.EXHAUSTED


async def test_a_release_clears_the_delay_of_an_earlier_retry(scene: Scene) -> None:
    first = await scene.running()
    await scene.retry(first, 60_000)
    second = await scene.again(first, "t2")
    await scene.release(second)
    reply = await scene.begin(first.job_id, first.message_id, "t3")
    assert reply.answer is Answer.RUN


async def test_unsent_events_are_written(scene: Scene) -> None:
    lease = await scene.running()
    await scene.emit(lease, 1, [note("a")])
    await scene.release(lease, first=1, events=[note("a"), note("b")])
    second = await scene.again(lease, "t2")
    await scene.finish(second, first=1, events=[note("c")])
    data = [event[b"data"] for event in await scene.events(lease.job_id)]
    assert data[2:5] == [b'{"text":"a"}', b'{"text":"b"}', WHY]
    assert data[-2:] == [b'{"text":"c"}', DONE.data]


async def test_lost_if_another_attempt_took_over(scene: Scene) -> None:
    zombie = await scene.running()
    heir = await scene.take_over(zombie)
    before = await scene.snapshot()
    assert await scene.release(zombie, first=1, events=[note("z")]) is Answer.LOST
    assert await scene.release(zombie._replace(attempt=2)) is Answer.LOST
    assert await scene.release(zombie._replace(token="t2")) is Answer.LOST
    assert await scene.snapshot() == before
    await scene.finish(heir)
    before = await scene.snapshot()
    assert await scene.release(heir) is Answer.LOST
    assert await scene.snapshot() == before


async def test_gone_acks_and_creates_no_key(scene: Scene) -> None:
    lease = await scene.running()
    gone = [key(lease.job_id) for key in (scene.keys.job, scene.keys.events, scene.keys.lease)]
    await scene.client.delete(*gone)
    for _ in range(2):
        assert await scene.release(lease) is Answer.GONE
    assert await scene.pending() == 0
    assert await scene.client.exists(*gone) == 0


async def test_an_acked_message_is_not_restored(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.xack(scene.keys.queue, "workers", lease.message_id)
    assert await scene.release(lease) is Answer.OK
    assert await scene.pending() == 0


async def test_a_job_with_a_cancel_request_ends_with_the_next_begin(scene: Scene) -> None:
    """A stopping worker releases it; the worker that takes it finds the cancel request."""
    lease = await scene.running()
    await scene.cancel(lease.job_id)
    assert await scene.release(lease) is Answer.OK
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.TERMINAL
    assert (await scene.job(lease.job_id))[b"status"] == b"canceled"
    assert await scene.types(lease.job_id) == [
        *(b"queued", b"running", b"canceling", b"released", b"canceled")
    ]
    assert await scene.pending() == 0


@pytest.mark.parametrize("how", ["release", "retry"])
async def test_a_job_whose_message_was_deleted_gets_a_new_one(scene: Scene, how: str) -> None:
    """Otherwise no worker would ever get the job again."""
    lease = await scene.running()
    await scene.client.delete(scene.keys.queue)
    if how == "release":
        assert await scene.release(lease) is Answer.OK
    else:
        retried = await scene.store.retry(lease, scene.worker, 0, b"{}", b"{}")
        assert retried is Answer.OK
    assert (await scene.job(lease.job_id))[b"status"] == b"queued"
    [(message_id, fields)] = await scene.client.xrange(scene.keys.queue)
    assert fields == {
        b"job_id": lease.job_id.encode(),
        b"task": b"chat",
        b"payload": b'{"text":"hello"}',
    }
    kept = await scene.client.hget(scene.keys.lease(lease.job_id), "message_id")
    assert kept == message_id
