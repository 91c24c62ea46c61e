"""DEAD_LETTER: one copy, then the ack; a job that expired before its start gets an error."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

import sluice.common.jobs.scripts
from sluice.common.contracts.jobs import DeadReason
from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey
from tests.support.store.jobs import StoreHarness

REASON = "expired_before_start"


def fields_of(job_id: str, task: str = "chat", payload: str = '{"a":1}') -> dict[bytes, bytes]:
    return {b"job_id": job_id.encode(), b"task": task.encode(), b"payload": payload.encode()}


async def unknown(harness: StoreHarness, fields: dict[bytes, bytes]) -> str:
    """A message that was read once and has no job."""
    if not await harness.client.exists(harness.keys.queue):
        await harness.group()
    await harness.client.xadd(harness.keys.queue, fields)
    [message_id] = await harness.take()
    return message_id


async def job_keys(harness: StoreHarness) -> list[bytes]:
    return await harness.client.keys(harness.keys.job("*"))  # type: ignore[no-any-return]


async def test_a_dead_letter_is_copied_once_then_acked(harness: StoreHarness) -> None:
    fields = {b"job_id": b"", b"junk": b"\xff\x00"}
    message_id = await unknown(harness, fields)
    args = (message_id, DeadReason.NO_JOB_ID, fields, "workers")
    assert await harness.store.dead_letter(*args) is Answer.OK
    assert await harness.store.dead_letter(*args) is Answer.ALREADY
    [(_, letter)] = await harness.client.xrange(harness.keys.dead_letters)
    assert letter.pop(b"ts").isdigit()
    assert json.loads(letter.pop(b"fields")) == {"job_id": "", "junk": "\ufffd\x00"}
    assert letter == {
        b"reason": b"message_without_job_id",
        b"message_id": message_id.encode(),
        b"job_id": b"",
        b"attempts": b"0",
        b"first_error": b"",
        b"last_error": b"",
    }
    assert await harness.pending() == 0
    # A message that is not pending is not dead-lettered.
    await harness.post()
    [_, (message_id, fields)] = await harness.client.xrange(harness.keys.queue)
    async with harness.unchanged():
        assert await harness.dead_letter(message_id.decode(), fields) is Answer.ALREADY


async def test_dead_letters_are_capped(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.common.jobs.scripts, "MAX_DEAD_LETTERS", 10)
    await harness.group()
    for _ in range(250):
        await harness.client.xadd(harness.keys.queue, {"x": "y" * 50})
    fields = {b"x": b"y" * 50}
    await asyncio.gather(
        *(
            harness.store.dead_letter(message_id, DeadReason.NO_JOB_ID, fields, "workers")
            for message_id in await harness.take(250)
        )
    )
    assert 10 <= await harness.client.xlen(harness.keys.dead_letters) < 120


async def test_a_job_that_expired_before_its_start_gets_an_error(harness: StoreHarness) -> None:
    job_id = str(uuid.uuid4())
    message_id = await unknown(harness, fields_of(job_id, "plan"))
    assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.MISSING
    heard = await harness.listen(harness.keys.hints)
    assert await harness.dead_letter(message_id, fields_of(job_id, "plan")) is Answer.EXPIRED
    job = await harness.job(job_id)
    now = job[b"created_ts"]
    error = json.loads(job.pop(b"error"))
    assert (error["kind"], error["attempt"]) == (REASON, 0)
    times = {b"created_ts": now, b"updated_ts": now, b"ttl_s": b"3600"}
    ended = {**fields_of(job_id, "plan"), **times, b"status": b"error", b"result": b""}
    assert job == ended
    [event] = await harness.events(job_id)
    assert (event[b"type"], event[b"step"], event[b"ts"]) == (b"error", b"worker.error", now)
    assert json.loads(event[b"data"]) == error
    await harness.check_ttls(job_id, 3600, "job", "events")
    assert await harness.pending() == 0
    [letter] = await harness.letters()
    assert (letter.reason, letter.job_id, letter.message_id) == (REASON, job_id, message_id)
    assert letter.message_fields() == {"job_id": job_id, "task": "plan", "payload": '{"a":1}'}
    assert await harness.held(job_id) == {}
    assert await asyncio.wait_for(heard.get(), 5) == job_id.encode()
    async with harness.unchanged():
        for _ in range(2):  # repeated after a lost reply
            again = await harness.dead_letter(message_id, fields_of(job_id, "plan"))
            assert again is Answer.ALREADY
    # A worker that gets the message again finds that the job has ended.
    await harness.client.xgroup_destroy(harness.keys.queue, "workers")
    await harness.client.xgroup_create(harness.keys.queue, "workers", id="0")
    assert await harness.take() == [message_id]
    assert (await harness.begin(job_id, message_id, "t2")).answer is Answer.TERMINAL
    assert await harness.types(job_id) == [b"error"]
    # A message from a wait queue counts as not started.
    job_id = str(uuid.uuid4())
    message_id = await unknown(harness, fields_of(job_id, "chat"))
    for consumer in ("another", "waiting:chat"):  # each claim counts as a delivery
        await harness.client.xclaim(
            harness.keys.queue, harness.worker.group, consumer, 0, [message_id], idle=0
        )
    assert await harness.dead_letter(message_id, fields_of(job_id, "chat")) is Answer.EXPIRED
    assert await harness.status(job_id) == b"error"


async def test_a_redelivered_message_may_have_run(harness: StoreHarness) -> None:
    """The worker that had it first may have ended the job, so long ago that it has expired."""
    job_id = str(uuid.uuid4())
    message_id = await unknown(harness, fields_of(job_id))
    await harness.client.xclaim(harness.keys.queue, "workers", "c2", 0, [message_id])
    assert await harness.dead_letter(message_id, fields_of(job_id)) is Answer.OK
    assert await job_keys(harness) == []
    [letter] = await harness.letters()
    assert letter.reason == "job_missing_or_expired"
    assert await harness.pending() == 0
    # A released job, or one claimed from a dead worker: both are second deliveries.
    lease = await harness.running()
    await harness.release(lease)
    await harness.client.delete(*await job_keys(harness))
    assert await harness.autoclaim("c2", 30_000) == [lease.message_id]
    assert await harness.dead_letter(lease.message_id, fields_of(lease.job_id)) is Answer.OK
    assert await job_keys(harness) == []


@pytest.mark.parametrize("part", ["job", "events"])
async def test_remaining_keys_of_a_job_are_not_touched(harness: StoreHarness, part: str) -> None:
    job_id, message_id = await harness.waiting()
    await harness.client.delete(getattr(harness.keys, part)(job_id))
    before = await harness.job(job_id), await harness.events(job_id)
    assert await harness.dead_letter(message_id, fields_of(job_id)) is Answer.OK
    assert (await harness.job(job_id), await harness.events(job_id)) == before
    [letter] = await harness.letters()
    assert letter.reason == "job_missing_or_expired"


@pytest.mark.parametrize("reason", [DeadReason.NO_JOB_ID, DeadReason.CORRUPT])
async def test_other_reasons_write_no_error(harness: StoreHarness, reason: DeadReason) -> None:
    fields = fields_of(str(uuid.uuid4()))
    message_id = await unknown(harness, fields)
    assert await harness.store.dead_letter(message_id, reason, fields, "workers") is Answer.OK
    assert await job_keys(harness) == []
    [letter] = await harness.letters()
    assert letter.reason == reason.value


INVALID = {
    "empty task": fields_of("x", ""),
    "unknown task": fields_of("x", "unknown"),
    "task with a space": fields_of("x", "chat "),
    "task in capitals": fields_of("x", "CHAT"),
    "task with a null byte": fields_of("x", "chat\x00"),
    "empty id": fields_of(""),
    "id with a dash first": fields_of("-x"),
    "id with spaces": fields_of("not an id"),
    "lease of another job": fields_of(f"{uuid.UUID(int=7)}:lease"),
    "events of another job": fields_of(f"{uuid.UUID(int=7)}:events"),
    "id with a newline": fields_of(f"{uuid.UUID(int=7)}\n"),
    "long id": fields_of("*" * 5000),
    "invalid UTF-8": {b"job_id": b"\xff\xfe", b"task": b"chat", b"payload": b"\xff"},
}


async def test_invalid_tasks_and_ids_get_no_keys(harness: StoreHarness) -> None:
    """No client could read such a job, and some of them are keys of other jobs."""
    for what, fields in INVALID.items():
        message_id = await unknown(harness, fields)
        assert await harness.dead_letter(message_id, fields) is Answer.OK, what
        assert await job_keys(harness) == [], what
        assert await harness.pending() == 0, what
    assert len(await harness.letters()) == len(INVALID)
    # Valid ids need not be UUIDs.
    for job_id in ("x", "a.b_c-1", "9" * 128):
        message_id = await unknown(harness, fields_of(job_id))
        assert await harness.dead_letter(message_id, fields_of(job_id)) is Answer.EXPIRED
        assert await harness.status(job_id) == b"error"


async def test_without_a_group_nothing_is_written(harness: StoreHarness) -> None:
    fields = fields_of(str(uuid.uuid4()))
    message_id = await unknown(harness, fields)
    await harness.client.xgroup_destroy(harness.keys.queue, "workers")
    async with harness.refuses(CorruptKey, match=r"NOGROUP|No such"):
        await harness.dead_letter(message_id, fields)
