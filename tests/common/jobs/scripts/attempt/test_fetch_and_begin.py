"""FETCH_AND_BEGIN: messages are read and begun in one call, once, even if replies are lost."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.jobs import QueueField
from common.contracts.queue import DO_NOT_BEGIN, Answer
from common.errors import CorruptKey
from common.jobs.store import Lease
from common.redis.scripts import Reply, unpack
from tests.support.store.jobs import DONE, StoreHarness

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
