"""BEGIN and FETCH_AND_BEGIN: at most one live attempt, and distinct answers for other cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.common.contracts.jobs import QueueField
from sluice.common.contracts.queue import DO_NOT_BEGIN, Answer
from sluice.common.errors import CorruptKey
from sluice.common.jobs.store import Claim, Lease
from sluice.common.redis.scripts import Reply, unpack
from tests.support.store.jobs import DONE, FAILED, StoreHarness


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
        reply = await harness.begin_next(lease, "t2")
    assert reply.answer is Answer.BUSY
    assert 0 < int(reply.value) <= harness.worker.lease_ms
    await harness.client.hset(harness.keys.lease(lease.job_id), "event_seq", "4")
    for _ in range(2):
        reply = await harness.begin_next(lease, "t1")
        assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    assert await harness.types(lease.job_id) == [b"queued", b"running"]
    # The numbering of its events is not reset.
    assert (await harness.held(lease.job_id))[b"event_seq"] == b"4"
    # An expired lease is taken over.
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
    assert (await harness.begin_next(lease, "t2")).answer is Answer.TERMINAL
    assert await harness.pending() == 0
    assert await harness.events(lease.job_id) == events
    assert await harness.job(lease.job_id) == job
    assert not await harness.held(lease.job_id)


@pytest.mark.parametrize("status", ["done", "error", "canceled"])
async def test_a_missing_end_is_added_before_the_ack(harness: StoreHarness, status: str) -> None:
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
    reply = await harness.begin_next(lease, "one-too-many")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, harness.worker.max_attempts)
    job = await harness.job(lease.job_id)
    assert job[b"status"] == b"error"
    assert json.loads(job[b"error"])["kind"] == "attempts_exhausted"
    assert (await harness.types(lease.job_id))[-1] == b"error"
    assert await harness.pending() == 0
    [letter] = await harness.letters()
    assert letter.message_fields()["job_id"] == lease.job_id
    assert (await harness.begin_next(lease, "again")).answer is Answer.TERMINAL
    assert len(await harness.letters()) == 1


# -- FETCH_AND_BEGIN: messages are read and begun in one call, once, even if replies are lost -----


TOKEN = "try"
#: The result for one message: its id, its job, and BEGIN's answer, or None.
Taken = tuple[str, str, Any]


async def take(
    harness: StoreHarness,
    most: int,
    *,
    token: str = TOKEN,
    again: bool = False,
    after: str = "",
    **terms: Any,
) -> list[Taken]:
    record = harness.store.fetch_record(token, most, harness.worker, after, terms)
    if again:
        record = record._replace(args=record.repeated)
    reply = await harness.batcher.call(record)
    assert reply.answer is Answer.OK
    entries: Any = reply.value
    assert len(entries) == len(reply.more)
    found = []
    for (entry_id, flat), raw in zip(entries, reply.more):
        fields = dict(zip(flat[::2], flat[1::2]))
        job_id = fields.get(QueueField.JOB_ID.encode(), b"").decode(errors="replace")
        found.append((entry_id.decode(), job_id, unpack(raw) if raw else None))  # type: ignore[arg-type]
    return found


def attempts(taken: list[Taken]) -> list[tuple[str, str, int]]:
    assert set(answers(taken)) == {Answer.RUN}
    return [(message_id, job_id, int(outcome.value)) for message_id, job_id, outcome in taken]


def answers(taken: list[Taken]) -> list[Any]:
    return [outcome.answer if isinstance(outcome, Reply) else outcome for _, _, outcome in taken]


async def test_messages_are_read_and_begun_oldest_first(harness: StoreHarness) -> None:
    await harness.group()
    assert await take(harness, 5) == []
    assert await take(harness, 5, again=True) == []
    jobs = await harness.post(3)
    taken = await take(harness, 2)
    assert [job_id for _, job_id, _ in taken] == jobs[:2]
    assert answers(taken) == [Answer.RUN, Answer.RUN]
    for message_id, job_id, outcome in taken:
        assert int(outcome.value) == 1
        assert await harness.status(job_id) == b"running"
        assert await harness.types(job_id) == [b"queued", b"running"]
        lease = await harness.held(job_id)
        assert lease[b"token"].decode() == f"{TOKEN}.{message_id}"
        assert lease[b"owner"].decode() == harness.worker.consumer
    assert await harness.status(jobs[2]) == b"queued"
    assert await harness.pending() == 2
    # Such an attempt ends like any other.
    message_id, job_id, _ = taken[0]
    lease = Lease(job_id, message_id, 1, f"{TOKEN}.{message_id}")
    assert await harness.finish(lease, DONE) is Answer.OK
    assert await harness.types(job_id) == [b"queued", b"running", b"done"]
    assert await harness.pending() == 1


async def test_each_message_gets_the_answer_of_begin(harness: StoreHarness) -> None:
    await harness.group()
    busy, ended, gone, fresh = await harness.post(4)
    [message_id] = await harness.take(1, "elsewhere")
    await harness.begin(busy, message_id, "theirs")
    for job_id in (busy, fresh):  # a second message
        fields = {"job_id": job_id, "task": "chat", "payload": "{}"}
        await harness.client.xadd(harness.keys.queue, fields)
    await harness.client.hset(harness.keys.job(ended), "status", "done")
    await harness.client.delete(harness.keys.job(gone))
    found = [(job_id, outcome.answer) for _, job_id, outcome in await take(harness, 9)]
    assert found == [
        (ended, Answer.TERMINAL),
        (gone, Answer.MISSING),
        (fresh, Answer.RUN),
        (busy, Answer.BUSY),
        (fresh, Answer.BUSY),
    ]
    assert await harness.types(fresh) == [b"queued", b"running"]


async def test_messages_with_invalid_job_ids_are_not_begun(harness: StoreHarness) -> None:
    await harness.group()
    invalid = [{"task": "chat"}, {"job_id": ""}, {"job_id": "a b"}, {"job_id": b"\xff\xfe"}]
    for fields in invalid:
        await harness.client.xadd(harness.keys.queue, fields)
    [job_id] = await harness.post()
    taken = await take(harness, 9)
    assert answers(taken) == [None, None, None, None, Answer.RUN]
    assert taken[-1][1] == job_id


async def test_tasks_can_be_excluded(harness: StoreHarness) -> None:
    await harness.group()
    [limited] = await harness.post(task="embed")
    [free] = await harness.post(task="chat")
    before = await harness.events(limited)
    first, second = await take(harness, 9, embed=DO_NOT_BEGIN)
    assert (first[1], first[2]) == (limited, None)
    assert (second[1], second[2].answer) == (free, Answer.RUN)
    assert await harness.events(limited) == before
    assert not await harness.held(limited)


async def test_the_attempt_limit_of_a_task_is_used(harness: StoreHarness) -> None:
    await harness.group()
    [job_id] = await harness.post()
    await harness.client.hset(harness.keys.lease(job_id), mapping={"attempt": 2, "deadline_ms": 1})
    assert answers(await take(harness, 1, chat=2)) == [Answer.EXHAUSTED]


async def test_a_corrupt_job_affects_no_other(harness: StoreHarness) -> None:
    await harness.group()
    spoilt, well = await harness.post(2)
    await harness.client.delete(harness.keys.events(spoilt))
    await harness.client.set(harness.keys.events(spoilt), "no stream")
    first, second = await take(harness, 9)
    assert isinstance(first[2], CorruptKey)
    assert await harness.status(spoilt) == b"queued"
    assert (second[1], second[2].answer) == (well, Answer.RUN)


async def test_without_a_group_nothing_happens(harness: StoreHarness) -> None:
    await harness.post()
    with pytest.raises(CorruptKey, match="NOGROUP"):
        await take(harness, 1)


@pytest.mark.real_redis
async def test_a_repeated_call_finds_what_it_has_begun(harness: StoreHarness) -> None:
    """Also behind more than a page of other pending messages."""
    await harness.group()
    await harness.post(130)
    others = await harness.take(120)  # of the same consumer, but not of this call
    first = await take(harness, 5)
    again = await take(harness, 5, again=True)
    assert attempts(again) == attempts(first)
    assert {message_id for message_id, _, _ in again}.isdisjoint(others)
    for _, job_id, _ in first:
        assert await harness.types(job_id) == [b"queued", b"running"]
    assert await harness.pending() == 125  # nothing more was read


async def test_a_repeated_call_runs_if_the_first_never_did(harness: StoreHarness) -> None:
    await harness.group()
    jobs = await harness.post(3)
    await take(harness, 1, token="another")
    taken = await take(harness, 2, again=True)
    assert [job_id for _, job_id, _ in taken] == jobs[1:]
    assert answers(taken) == [Answer.RUN, Answer.RUN]


async def test_a_repeated_call_searches_only_newer_messages(harness: StoreHarness) -> None:
    await harness.group()
    await harness.post(4)
    older = await take(harness, 2)
    last = older[-1][0]
    newer = await take(harness, 2, after=last)
    assert attempts(await take(harness, 2, again=True, after=last)) == attempts(newer)
    assert attempts(await take(harness, 2, again=True)) == attempts(older + newer)
