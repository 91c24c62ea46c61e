"""BEGIN: at most one live attempt, and a distinct answer for every other case."""

from __future__ import annotations

import json

import pytest

from common.contracts.queue import Answer
from common.jobs.store import Claim
from tests.support.store.jobs import FAILED, StoreHarness


async def test_run_sets_the_status_and_writes_an_event(harness: StoreHarness) -> None:
    job_id, message_id = await harness.waiting(ttl_s=90)
    before = await harness.job(job_id)
    reply = await harness.begin(job_id, message_id, "t1")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    after = await harness.job(job_id)
    assert after.pop(b"status") == b"running"
    updated = after.pop(b"updated_ts")
    assert int(updated) >= int(before.pop(b"updated_ts"))
    before.pop(b"status")
    assert after == before
    assert (await harness.events(job_id))[1:] == [
        {b"type": b"running", b"ts": updated, b"step": b"worker.start", b"data": b'{"attempt":1}'}
    ]
    lease = await harness.held(job_id)
    assert int(lease.pop(b"deadline_ms")) == int(updated) + harness.worker.lease_ms
    assert lease == {b"attempt": b"1", b"token": b"t1", b"owner": b"c1", b"event_seq": b"0"}
    await harness.check_ttls(job_id, 90)
    assert await harness.pending() == 1


async def test_a_live_attempt_excludes_others_but_not_its_repeat(harness: StoreHarness) -> None:
    lease = await harness.running()
    async with harness.unchanged():
        reply = await harness.begin(lease.job_id, lease.message_id, "t2")
    assert reply.answer is Answer.BUSY
    assert 0 < int(reply.value) <= harness.worker.lease_ms
    await harness.client.hset(harness.keys.lease(lease.job_id), "event_seq", "4")
    for _ in range(2):
        reply = await harness.begin(lease.job_id, lease.message_id, "t1")
        assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    assert await harness.types(lease.job_id) == [b"queued", b"running"]
    # The numbering of its events is not reset.
    assert (await harness.held(lease.job_id))[b"event_seq"] == b"4"


async def test_an_expired_lease_is_taken_over(harness: StoreHarness) -> None:
    lease = await harness.running()
    second = await harness.take_over(lease)
    assert second.attempt == 2
    assert (await harness.data(lease.job_id))[-1] == b'{"attempt":2}'
    third = await harness.take_over(second, "t3")
    assert third.attempt == 3
    assert (await harness.held(lease.job_id))[b"event_seq"] == b"0"


async def test_the_message_of_an_ended_job_is_acked(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.finish(lease, FAILED)
    events, job = await harness.events(lease.job_id), await harness.job(lease.job_id)
    # The message is delivered again, for example to a recreated group.
    await harness.client.xgroup_destroy(harness.keys.queue, "workers")
    await harness.client.xgroup_create(harness.keys.queue, "workers", id="0")
    assert await harness.take() == [lease.message_id]
    assert (await harness.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.TERMINAL
    assert await harness.pending() == 0
    assert await harness.events(lease.job_id) == events
    assert await harness.job(lease.job_id) == job
    assert not await harness.held(lease.job_id)


@pytest.mark.parametrize("status", ["done", "error", "canceled"])
async def test_a_missing_terminal_event_is_added_before_the_ack(
    harness: StoreHarness, status: str
) -> None:
    job_id, message_id = await harness.waiting(ttl_s=90)
    await harness.client.hset(harness.keys.job(job_id), "status", status)
    await harness.client.persist(harness.keys.events(job_id))
    for _ in range(2):
        assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    assert await harness.types(job_id) == [b"queued", status.encode()]
    assert (await harness.events(job_id))[-1][b"step"] == b"worker.repair"
    await harness.check_ttls(job_id, 90, "events")
    assert await harness.pending() == 0
    # Also if all its events are gone.
    job_id, message_id = await harness.waiting()
    await harness.client.hset(harness.keys.job(job_id), "status", status)
    await harness.client.delete(harness.keys.events(job_id))
    await harness.begin(job_id, message_id, "t1")
    assert await harness.types(job_id) == [status.encode()]
    assert await harness.without_ttl() == []


async def test_a_missing_job_or_an_invalid_lease(harness: StoreHarness) -> None:
    job_id, message_id = await harness.waiting()
    await harness.client.delete(*harness.names(job_id, "job", "events"))
    async with harness.unchanged():
        assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.MISSING
    assert await harness.pending() == 1
    job_id, message_id = await harness.waiting()
    junk = {"attempt": "many", "token": b"\xff", "deadline_ms": "tomorrow", "event_seq": "x"}
    await harness.client.hset(harness.keys.lease(job_id), mapping=junk)
    reply = await harness.begin(job_id, message_id, "t1")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)


async def test_a_valid_ttl_of_the_job_is_used(harness: StoreHarness) -> None:
    valid = {b"1": 1, b"90": 90, b"2592000": 2592000}
    invalid = (b"2592001", b"0", b"-5", b"1.5", b"", b"soon", b"nan", b"inf", b"1e99", b"\xff\xfe")
    for stored, expected in {**valid, **dict.fromkeys((*invalid, None), 600)}.items():
        job_id, message_id = await harness.waiting()
        await harness.client.hdel(harness.keys.job(job_id), "ttl_s")
        if stored is not None:
            await harness.client.hset(harness.keys.job(job_id), "ttl_s", stored)
        assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.RUN
        for name in harness.names(job_id):
            left_ms = await harness.client.pttl(name)
            assert expected * 1000 - 900 < left_ms <= expected * 1000, stored


async def test_many_claims_are_answered_one_for_one(harness: StoreHarness) -> None:
    await harness.group()
    jobs = await harness.post(70)
    messages = await harness.take(70)
    await harness.client.delete(harness.keys.job(jobs[50]))
    claims = [
        Claim(job_id, message_id, f"t{number}")
        for number, (job_id, message_id) in enumerate(zip(jobs, messages))
    ]
    claims.append(Claim(jobs[0], messages[0], "again"))  # one message twice in a batch runs once
    replies = await harness.store.begin(claims, harness.worker)
    answers = [reply.answer for reply in replies]
    assert answers == [Answer.RUN] * 50 + [Answer.MISSING] + [Answer.RUN] * 19 + [Answer.BUSY]
    assert await harness.without_ttl() == []


async def test_a_job_without_attempts_left_ends_in_error(harness: StoreHarness) -> None:
    """Its lease expired each time: the last BEGIN writes the end, once, and a dead letter."""
    lease = await harness.running()
    for number in range(2, harness.worker.max_attempts + 1):
        lease = await harness.take_over(lease, f"t{number}")
    await harness.expire(lease)
    reply = await harness.begin(lease.job_id, lease.message_id, "one-too-many")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, harness.worker.max_attempts)
    job = await harness.job(lease.job_id)
    assert job[b"status"] == b"error"
    assert json.loads(job[b"error"])["kind"] == "attempts_exhausted"
    assert (await harness.types(lease.job_id))[-1] == b"error"
    assert await harness.pending() == 0
    [letter] = await harness.letters()
    assert letter.message_fields()["job_id"] == lease.job_id
    again = await harness.begin(lease.job_id, lease.message_id, "again")
    assert again.answer is Answer.TERMINAL
    assert len(await harness.letters()) == 1
