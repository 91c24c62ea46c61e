"""FETCH_AND_BEGIN: messages are read and begun in one call, once, even if replies are lost."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.jobs import QueueField
from common.contracts.queue import DO_NOT_BEGIN, Answer
from common.errors import CorruptKey
from common.jobs.store import Lease
from common.redis.scripts import Reply, unpack
from tests.common.kit import DONE, Scene

TOKEN = "try"
#: The result for one message: its id, its job, and BEGIN's answer, or None.
Taken = tuple[str, str, Any]


async def take(
    scene: Scene,
    most: int,
    *,
    token: str = TOKEN,
    again: bool = False,
    after: str = "",
    **terms: Any,
) -> list[Taken]:
    record = scene.store.fetch_record(token, most, scene.worker, after, terms)
    if again:
        record = record._replace(args=record.repeated)
    reply = await scene.batcher.call(record)
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


async def test_messages_are_read_and_begun_oldest_first(scene: Scene) -> None:
    await scene.group()
    jobs = await scene.post(3)
    taken = await take(scene, 2)
    assert [job_id for _, job_id, _ in taken] == jobs[:2]
    assert answers(taken) == [Answer.RUN, Answer.RUN]
    for message_id, job_id, outcome in taken:
        assert int(outcome.value) == 1
        assert (await scene.job(job_id))[b"status"] == b"running"
        assert await scene.types(job_id) == [b"queued", b"running"]
        lease = await scene.client.hgetall(scene.keys.lease(job_id))
        assert lease[b"token"].decode() == f"{TOKEN}.{message_id}"
        assert lease[b"owner"].decode() == scene.worker.consumer
    assert (await scene.job(jobs[2]))[b"status"] == b"queued"
    assert await scene.pending() == 2


async def test_such_an_attempt_ends_like_any_other(scene: Scene) -> None:
    await scene.group()
    await scene.post()
    [(message_id, job_id, outcome)] = await take(scene, 5)
    lease = Lease(job_id, message_id, int(outcome.value), f"{TOKEN}.{message_id}")
    assert await scene.finish(lease, DONE) is Answer.OK
    assert await scene.types(job_id) == [b"queued", b"running", b"done"]
    assert await scene.pending() == 0


async def test_an_empty_queue_brings_nothing(scene: Scene) -> None:
    await scene.group()
    assert await take(scene, 5) == []
    assert await take(scene, 5, again=True) == []


async def test_each_message_gets_the_answer_of_begin(scene: Scene) -> None:
    await scene.group()
    busy, ended, gone, fresh = await scene.post(4)
    [message_id] = await scene.take(1, "elsewhere")
    await scene.begin(busy, message_id, "theirs")
    await scene.client.xadd(scene.keys.queue, {"job_id": busy, "task": "chat", "payload": "{}"})
    await scene.client.hset(scene.keys.job(ended), "status", "done")
    await scene.client.delete(scene.keys.job(gone))
    found = {job_id: outcome.answer for _, job_id, outcome in await take(scene, 9)}
    assert found == {
        ended: Answer.TERMINAL,
        gone: Answer.MISSING,
        fresh: Answer.RUN,
        busy: Answer.BUSY,
    }


async def test_two_messages_of_one_job_begin_it_once(scene: Scene) -> None:
    await scene.group()
    [job_id] = await scene.post()
    await scene.client.xadd(scene.keys.queue, {"job_id": job_id, "task": "chat", "payload": "{}"})
    assert answers(await take(scene, 9)) == [Answer.RUN, Answer.BUSY]
    assert await scene.types(job_id) == [b"queued", b"running"]


@pytest.mark.parametrize(
    "fields", [{"task": "chat"}, {"job_id": ""}, {"job_id": "a b"}, {"job_id": b"\xff\xfe"}]
)
async def test_messages_with_invalid_job_ids_are_not_begun(
    scene: Scene, fields: dict[str, Any]
) -> None:
    await scene.group()
    await scene.client.xadd(scene.keys.queue, fields)
    [job_id] = await scene.post()
    first, second = await take(scene, 9)
    assert first[2] is None
    assert (second[1], second[2].answer) == (job_id, Answer.RUN)


async def test_tasks_can_be_excluded(scene: Scene) -> None:
    await scene.group()
    [limited] = await scene.post(task="embed")
    [free] = await scene.post(task="chat")
    before = await scene.events(limited)
    first, second = await take(scene, 9, embed=DO_NOT_BEGIN)
    assert (first[1], first[2]) == (limited, None)
    assert (second[1], second[2].answer) == (free, Answer.RUN)
    assert await scene.events(limited) == before
    assert not await scene.client.exists(scene.keys.lease(limited))


async def test_the_attempt_limit_of_a_task_is_used(scene: Scene) -> None:
    await scene.group()
    [job_id] = await scene.post()
    await scene.client.hset(scene.keys.lease(job_id), mapping={"attempt": 2, "deadline_ms": 1})
    assert answers(await take(scene, 1, chat=2)) == [Answer.EXHAUSTED]


async def test_a_corrupt_job_affects_no_other(scene: Scene) -> None:
    await scene.group()
    spoilt, well = await scene.post(2)
    await scene.client.delete(scene.keys.events(spoilt))
    await scene.client.set(scene.keys.events(spoilt), "no stream")
    first, second = await take(scene, 9)
    assert isinstance(first[2], CorruptKey)
    assert (await scene.job(spoilt))[b"status"] == b"queued"
    assert (second[1], second[2].answer) == (well, Answer.RUN)


async def test_without_a_group_nothing_happens(scene: Scene) -> None:
    await scene.post()
    with pytest.raises(CorruptKey, match="NOGROUP"):
        await take(scene, 1)


async def test_a_repeated_call_finds_what_it_has_begun(scene: Scene) -> None:
    await scene.group()
    await scene.post(5)
    others = await scene.take(1)  # of the same consumer, but not of this call
    first = await take(scene, 2)
    again = await take(scene, 2, again=True)
    assert attempts(again) == attempts(first)
    assert {message_id for message_id, _, _ in again}.isdisjoint(others)
    for _, job_id, _ in first:
        assert await scene.types(job_id) == [b"queued", b"running"]
    assert await scene.pending() == 3  # nothing more was read


async def test_a_repeated_call_runs_if_the_first_never_did(scene: Scene) -> None:
    await scene.group()
    jobs = await scene.post(3)
    await take(scene, 1, token="another")
    taken = await take(scene, 2, again=True)
    assert [job_id for _, job_id, _ in taken] == jobs[1:]
    assert answers(taken) == [Answer.RUN, Answer.RUN]


async def test_more_than_a_page_of_pending_messages_is_searched(scene: Scene) -> None:
    await scene.group()
    await scene.post(130)
    await scene.take(120)
    first = await take(scene, 5)
    assert attempts(await take(scene, 5, again=True)) == attempts(first)


async def test_a_repeated_call_searches_only_newer_messages(scene: Scene) -> None:
    await scene.group()
    await scene.post(4)
    older = await take(scene, 2)
    last = older[-1][0]
    newer = await take(scene, 2, after=last)
    assert attempts(await take(scene, 2, again=True, after=last)) == attempts(newer)
    assert attempts(await take(scene, 2, again=True)) == attempts(older + newer)
