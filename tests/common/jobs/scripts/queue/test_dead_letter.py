"""DEAD_LETTER: a job that expired before it started gets an error; nothing else gets keys."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from common.contracts.jobs import DeadReason
from common.contracts.queue import Answer
from common.errors import CorruptKey
from tests.common.kit import Scene

REASON = "expired_before_start"


def fields_of(job_id: str, task: str = "chat", payload: str = '{"a":1}') -> dict[bytes, bytes]:
    return {b"job_id": job_id.encode(), b"task": task.encode(), b"payload": payload.encode()}


async def unknown(scene: Scene, fields: dict[bytes, bytes]) -> str:
    """A message that was read once and has no job."""
    if not await scene.client.exists(scene.keys.queue):
        await scene.group()
    await scene.client.xadd(scene.keys.queue, fields)
    [message_id] = await scene.take()
    return message_id


async def job_keys(scene: Scene) -> list[bytes]:
    return await scene.client.keys(scene.keys.job("*"))  # type: ignore[no-any-return]


async def test_a_message_from_a_wait_queue_counts_as_not_started(scene: Scene) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id, "chat"))
    for consumer in ("another", "waiting:chat"):  # each claim counts as a delivery
        await scene.client.xclaim(
            scene.keys.queue, scene.worker.group, consumer, 0, [message_id], idle=0
        )
    assert await scene.dead_letter(message_id, fields_of(job_id, "chat")) is Answer.EXPIRED
    assert (await scene.job(job_id))[b"status"] == b"error"


async def test_a_job_that_expired_before_its_start_gets_an_error(scene: Scene) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id, "plan"))
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.MISSING
    assert await scene.dead_letter(message_id, fields_of(job_id, "plan")) is Answer.EXPIRED
    job = await scene.job(job_id)
    now = job[b"created_ts"]
    error = json.loads(job.pop(b"error"))
    assert (error["kind"], error["attempt"]) == (REASON, 0)
    assert job == {
        b"job_id": job_id.encode(),
        b"task": b"plan",
        b"payload": b'{"a":1}',
        b"status": b"error",
        b"created_ts": now,
        b"updated_ts": now,
        b"ttl_s": b"3600",
        b"result": b"",
    }
    [event] = await scene.events(job_id)
    assert (event[b"type"], event[b"step"], event[b"ts"]) == (b"error", b"worker.error", now)
    assert json.loads(event[b"data"]) == error
    for key in (scene.keys.job(job_id), scene.keys.events(job_id)):
        assert 3590 < await scene.client.ttl(key) <= 3600
    assert await scene.pending() == 0
    [letter] = await scene.letters()
    assert (letter.reason, letter.job_id, letter.message_id) == (REASON, job_id, message_id)
    assert letter.message_fields() == {"job_id": job_id, "task": "plan", "payload": '{"a":1}'}
    assert await scene.held(job_id) == {}


async def test_a_repeat_after_a_lost_reply_changes_nothing(scene: Scene) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id))
    await scene.dead_letter(message_id, fields_of(job_id))
    before = await scene.snapshot()
    for _ in range(2):
        assert await scene.dead_letter(message_id, fields_of(job_id)) is Answer.ALREADY
    assert await scene.snapshot() == before
    # A worker that gets the message again finds that the job has ended.
    await scene.client.xgroup_destroy(scene.keys.queue, "workers")
    await scene.client.xgroup_create(scene.keys.queue, "workers", id="0")
    assert await scene.take() == [message_id]
    assert (await scene.begin(job_id, message_id, "t2")).answer is Answer.TERMINAL
    assert await scene.types(job_id) == [b"error"]


async def test_a_hint_is_published(scene: Scene) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id))
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    line = scene.backend.wire(on_message=heard.put_nowait)
    await line.execute_command("SUBSCRIBE", scene.keys.hints)
    await scene.dead_letter(message_id, fields_of(job_id))
    assert await asyncio.wait_for(heard.get(), 5) == job_id.encode()


async def test_a_redelivered_message_may_have_run(scene: Scene) -> None:
    """The worker that had it first may have ended the job, so long ago that it has expired."""
    job_id = str(uuid.uuid4())
    message_id = await unknown(scene, fields_of(job_id))
    await scene.client.xclaim(scene.keys.queue, "workers", "c2", 0, [message_id])
    assert await scene.dead_letter(message_id, fields_of(job_id)) is Answer.OK
    assert await job_keys(scene) == []
    [letter] = await scene.letters()
    assert letter.reason == "job_missing_or_expired"
    assert await scene.pending() == 0


async def test_a_job_that_ran_and_was_deleted_gets_no_error(scene: Scene) -> None:
    """Released, or claimed from a dead worker: both are second deliveries."""
    lease = await scene.running()
    await scene.release(lease)
    await scene.client.delete(*await job_keys(scene))
    assert await scene.autoclaim("c2", 30_000) == [lease.message_id]
    assert await scene.dead_letter(lease.message_id, fields_of(lease.job_id)) is Answer.OK
    assert await job_keys(scene) == []


@pytest.mark.parametrize("part", ["job", "events"])
async def test_remaining_keys_of_a_job_are_not_touched(scene: Scene, part: str) -> None:
    job_id, message_id = await scene.waiting()
    await scene.client.delete(getattr(scene.keys, part)(job_id))
    before = await scene.job(job_id), await scene.events(job_id)
    assert await scene.dead_letter(message_id, fields_of(job_id)) is Answer.OK
    assert (await scene.job(job_id), await scene.events(job_id)) == before
    [letter] = await scene.letters()
    assert letter.reason == "job_missing_or_expired"


@pytest.mark.parametrize("reason", [DeadReason.NO_JOB_ID, DeadReason.CORRUPT])
async def test_other_reasons_write_no_error(scene: Scene, reason: DeadReason) -> None:
    fields = fields_of(str(uuid.uuid4()))
    message_id = await unknown(scene, fields)
    assert await scene.store.dead_letter(message_id, reason, fields, "workers") is Answer.OK
    assert await job_keys(scene) == []
    [letter] = await scene.letters()
    assert letter.reason == reason.value


@pytest.mark.parametrize("task", ["", "unknown", "chat ", "CHAT", "chat\x00"])
async def test_invalid_tasks_get_no_keys(scene: Scene, task: str) -> None:
    fields = fields_of(str(uuid.uuid4()), task)
    message_id = await unknown(scene, fields)
    assert await scene.dead_letter(message_id, fields) is Answer.OK
    assert await job_keys(scene) == []
    assert await scene.pending() == 0


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        "-x",
        "not an id",
        f"{uuid.UUID(int=7)}:lease",
        f"{uuid.UUID(int=7)}:events",
        f"{uuid.UUID(int=7)}\n",
        "*" * 5000,
    ],
    ids=["empty", "dash", "spaces", "lease", "events", "newline", "long"],
)
async def test_invalid_ids_get_no_keys(scene: Scene, job_id: str) -> None:
    """No client could look such a job up, and some of them are keys of other jobs."""
    fields = fields_of(job_id)
    message_id = await unknown(scene, fields)
    assert await scene.dead_letter(message_id, fields) is Answer.OK
    assert await job_keys(scene) == []
    assert await scene.pending() == 0
    assert len(await scene.letters()) == 1


@pytest.mark.parametrize("job_id", ["x", "a.b_c-1", "9" * 128])
async def test_valid_ids_need_not_be_uuids(scene: Scene, job_id: str) -> None:
    fields = fields_of(job_id)
    message_id = await unknown(scene, fields)
    assert await scene.dead_letter(message_id, fields) is Answer.EXPIRED
    assert (await scene.job(job_id))[b"status"] == b"error"


async def test_invalid_utf8_gets_no_keys(scene: Scene) -> None:
    fields = {b"job_id": b"\xff\xfe", b"task": b"chat", b"payload": b"\xff"}
    message_id = await unknown(scene, fields)
    assert await scene.dead_letter(message_id, fields) is Answer.OK
    assert await job_keys(scene) == []


async def test_without_a_group_nothing_is_written(scene: Scene) -> None:
    fields = fields_of(str(uuid.uuid4()))
    message_id = await unknown(scene, fields)
    await scene.client.xgroup_destroy(scene.keys.queue, "workers")
    before = await scene.snapshot()
    with pytest.raises(CorruptKey, match=r"NOGROUP|No such"):
        await scene.dead_letter(message_id, fields)
    assert await scene.snapshot() == before
