"""BEGIN: at most one live attempt, and a distinct answer for every other case."""

from __future__ import annotations

import json

import pytest

from common.contracts.queue import Answer
from common.jobs.store import Claim
from tests.common.kit import FAILED, Scene


async def queued(scene: Scene, **changes: object) -> tuple[str, str]:
    await scene.group()
    [job_id] = await scene.post(**changes)
    [message_id] = await scene.take()
    return job_id, message_id


async def test_run_sets_the_status_and_writes_an_event(scene: Scene) -> None:
    job_id, message_id = await queued(scene, ttl_s=90)
    before = await scene.job(job_id)
    reply = await scene.begin(job_id, message_id, "t1")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    after = await scene.job(job_id)
    assert after.pop(b"status") == b"running"
    updated = after.pop(b"updated_ts")
    assert int(updated) >= int(before.pop(b"updated_ts"))
    before.pop(b"status")
    assert after == before
    assert (await scene.events(job_id))[1:] == [
        {b"type": b"running", b"ts": updated, b"step": b"worker.start", b"data": b'{"attempt":1}'}
    ]
    lease = await scene.client.hgetall(scene.keys.lease(job_id))
    deadline = int(lease.pop(b"deadline_ms"))
    assert deadline == int(updated) + scene.worker.lease_ms
    assert lease == {b"attempt": b"1", b"token": b"t1", b"owner": b"c1", b"event_seq": b"0"}
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        assert 80 < await scene.client.ttl(key(job_id)) <= 90
    assert await scene.pending() == 1


async def test_a_live_attempt_excludes_others(scene: Scene) -> None:
    lease = await scene.running()
    before = await scene.snapshot()
    reply = await scene.begin(lease.job_id, lease.message_id, "t2")
    assert reply.answer is Answer.BUSY
    assert 0 < int(reply.value) <= scene.worker.lease_ms
    assert await scene.snapshot() == before


async def test_a_repeated_call_is_the_same_attempt(scene: Scene) -> None:
    lease = await scene.running()
    for _ in range(2):
        reply = await scene.begin(lease.job_id, lease.message_id, "t1")
        assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    assert await scene.types(lease.job_id) == [b"queued", b"running"]


async def test_a_repeated_call_keeps_the_event_numbers(scene: Scene) -> None:
    """A repeated BEGIN must not reset the numbering of events."""
    lease = await scene.running()
    await scene.client.hset(scene.keys.lease(lease.job_id), "event_seq", "4")
    await scene.begin(lease.job_id, lease.message_id, "t1")
    assert await scene.client.hget(scene.keys.lease(lease.job_id), "event_seq") == b"4"


async def test_an_expired_lease_is_taken_over(scene: Scene) -> None:
    lease = await scene.running()
    second = await scene.take_over(lease)
    assert second.attempt == 2
    assert (await scene.events(lease.job_id))[-1][b"data"] == b'{"attempt":2}'
    third = await scene.take_over(second, "t3")
    assert third.attempt == 3
    assert await scene.client.hget(scene.keys.lease(lease.job_id), "event_seq") == b"0"


async def test_the_message_of_an_ended_job_is_acked(scene: Scene) -> None:
    lease = await scene.running()
    await scene.finish(lease, FAILED)
    events, job = await scene.events(lease.job_id), await scene.job(lease.job_id)
    # The message is delivered again, for example to a recreated group.
    await scene.client.xgroup_destroy(scene.keys.queue, "workers")
    await scene.client.xgroup_create(scene.keys.queue, "workers", id="0")
    assert await scene.take() == [lease.message_id]
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.TERMINAL
    assert await scene.pending() == 0
    assert await scene.events(lease.job_id) == events
    assert await scene.job(lease.job_id) == job
    assert not await scene.client.exists(scene.keys.lease(lease.job_id))


@pytest.mark.parametrize("status", ["done", "error", "canceled"])
async def test_a_missing_terminal_event_is_added_before_the_ack(scene: Scene, status: str) -> None:
    job_id, message_id = await queued(scene, ttl_s=90)
    await scene.client.hset(scene.keys.job(job_id), "status", status)
    await scene.client.persist(scene.keys.events(job_id))
    for _ in range(2):
        assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    assert await scene.types(job_id) == [b"queued", status.encode()]
    assert (await scene.events(job_id))[-1][b"step"] == b"worker.repair"
    assert 80 < await scene.client.ttl(scene.keys.events(job_id)) <= 90
    assert await scene.pending() == 0


async def test_an_ended_job_without_events_gets_its_terminal_event(scene: Scene) -> None:
    job_id, message_id = await queued(scene)
    await scene.client.hset(scene.keys.job(job_id), "status", "done")
    await scene.client.delete(scene.keys.events(job_id))
    await scene.begin(job_id, message_id, "t1")
    assert await scene.types(job_id) == [b"done"]
    assert await scene.without_ttl() == []


async def test_a_missing_job_writes_nothing(scene: Scene) -> None:
    job_id, message_id = await queued(scene)
    await scene.client.delete(scene.keys.job(job_id), scene.keys.events(job_id))
    before = await scene.snapshot()
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.MISSING
    assert await scene.snapshot() == before
    assert await scene.pending() == 1


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (b"1", 1),
        (b"90", 90),
        (b"2592000", 2592000),
        (b"2592001", 600),
        (b"0", 600),
        (b"-5", 600),
        (b"1.5", 600),
        (b"", 600),
        (b"soon", 600),
        (b"nan", 600),
        (b"inf", 600),
        (b"1e99", 600),
        (b"\xff\xfe", 600),
        (None, 600),
    ],
)
async def test_a_valid_ttl_of_the_job_is_used(
    scene: Scene, stored: bytes | None, expected: int
) -> None:
    job_id, message_id = await queued(scene)
    if stored is None:
        await scene.client.hdel(scene.keys.job(job_id), "ttl_s")
    else:
        await scene.client.hset(scene.keys.job(job_id), "ttl_s", stored)
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.RUN
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        left_ms = await scene.client.pttl(key(job_id))
        assert expected * 1000 - 900 < left_ms <= expected * 1000


async def test_an_invalid_lease_is_not_an_attempt(scene: Scene) -> None:
    job_id, message_id = await queued(scene)
    junk = {"attempt": "many", "token": b"\xff", "deadline_ms": "tomorrow", "event_seq": "x"}
    await scene.client.hset(scene.keys.lease(job_id), mapping=junk)
    reply = await scene.begin(job_id, message_id, "t1")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)


async def test_many_claims_are_answered_one_for_one(scene: Scene) -> None:
    await scene.group()
    jobs = await scene.post(70)
    messages = await scene.take(70)
    await scene.client.delete(scene.keys.job(jobs[50]))
    claims = [
        Claim(job_id, message_id, f"t{number}")
        for number, (job_id, message_id) in enumerate(zip(jobs, messages))
    ]
    replies = await scene.store.begin(claims, scene.worker)
    answers = [reply.answer for reply in replies]
    assert answers == [Answer.RUN] * 50 + [Answer.MISSING] + [Answer.RUN] * 19
    assert await scene.without_ttl() == []


async def test_one_message_twice_in_one_batch_runs_once(scene: Scene) -> None:
    job_id, message_id = await queued(scene)
    claims = [Claim(job_id, message_id, "t1"), Claim(job_id, message_id, "t2")]
    replies = await scene.store.begin(claims, scene.worker)
    assert [reply.answer for reply in replies] == [Answer.RUN, Answer.BUSY]


async def test_a_job_without_attempts_left_ends_in_error(scene: Scene) -> None:
    """Its lease expired each time: the last BEGIN writes the end, once, and a dead letter."""
    lease = await scene.running()
    for number in range(2, scene.worker.max_attempts + 1):
        lease = await scene.take_over(lease, f"t{number}")
    await scene.expire(lease)
    reply = await scene.begin(lease.job_id, lease.message_id, "one-too-many")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, scene.worker.max_attempts)
    job = await scene.job(lease.job_id)
    assert job[b"status"] == b"error"
    assert json.loads(job[b"error"])["kind"] == "attempts_exhausted"
    assert (await scene.types(lease.job_id))[-1] == b"error"
    assert await scene.pending() == 0
    [(_, letter)] = await scene.client.xrange(scene.keys.dead_letters)
    assert json.loads(letter[b"fields"])["job_id"] == lease.job_id
    again = await scene.begin(lease.job_id, lease.message_id, "again")
    assert again.answer is Answer.TERMINAL
    assert await scene.client.xlen(scene.keys.dead_letters) == 1
