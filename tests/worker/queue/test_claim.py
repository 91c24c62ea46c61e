"""The claimer: which messages may run, and how all others are settled."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from sluice.worker.queue.messages import Message
from tests.support.worker.harness import MakeWorker, WorkerHarness


async def dead_letters(worker: WorkerHarness) -> list[tuple[bytes, dict[str, str]]]:
    entries = await worker.client.xrange(worker.keys.dead_letters)
    return [(fields[b"reason"], orjson.loads(fields[b"fields"])) for _, fields in entries]


@pytest.fixture
async def ready(make_worker: MakeWorker) -> WorkerHarness:
    worker = make_worker()
    await worker.group()
    return worker


async def test_a_message_becomes_an_attempt(ready: WorkerHarness) -> None:
    [job_id] = await ready.post(payload=b'{"a":1}', task="rag")
    [message] = await ready.messages()
    [attempt] = await ready.claimer.claim([message])
    assert (attempt.task, attempt.payload) == ("rag", b'{"a":1}')
    assert attempt.lease[:3] == (job_id, message.id, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({b"task": b"chat"}, b"message_without_job_id"),
        ({b"job_id": b""}, b"message_without_job_id"),
        ({b"\xff": b"\xfe\x00"}, b"message_without_job_id"),
        ({b"job_id": b"nobody", b"task": b"?"}, b"job_missing_or_expired"),
        ({b"job_id": b"\xff\xfe"}, b"job_missing_or_expired"),
        ({b"job_id": b"a b\r\n"}, b"job_missing_or_expired"),
        ({b"job_id": b"x" * 10_000}, b"job_missing_or_expired"),
        ({b"job_id": b"*"}, b"job_missing_or_expired"),
    ],
    ids=["none", "empty", "junk", "no-hash", "no-text", "spaces", "long", "pattern"],
)
async def test_a_message_without_a_job_is_dead_lettered(
    ready: WorkerHarness, fields: dict[bytes, bytes], reason: bytes
) -> None:
    await ready.client.xadd(ready.keys.queue, fields)
    [good] = await ready.post()
    [attempt] = await ready.claimer.claim(await ready.messages())
    assert attempt.lease.job_id == good
    [(found, kept)] = await dead_letters(ready)
    assert (found, len(kept)) == (reason, len(fields))
    assert {name.decode(errors="replace") for name in fields} <= set(kept)
    assert await ready.pending() == 1
    assert await ready.client.keys("job:nobody*") == []


async def test_extra_and_missing_fields_do_not_matter(ready: WorkerHarness) -> None:
    [job_id] = await ready.post()
    await ready.client.delete(ready.keys.queue)
    await ready.group()
    await ready.client.xadd(ready.keys.queue, {b"job_id": job_id, b"x\xff": b"\x00", b"y": b"z"})
    [attempt] = await ready.claimer.claim(await ready.messages())
    assert (attempt.task, attempt.payload) == ("", b"")


async def test_jobs_that_run_elsewhere_are_skipped_and_ended_ones_acked(
    ready: WorkerHarness,
) -> None:
    lease = await ready.running("other")
    before = await ready.snapshot()
    fields = {b"job_id": lease.job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    message = Message.read(lease.message_id, fields)
    for _ in range(2):  # checked again when the lease has expired; then it was renewed
        assert await ready.claimer.claim([message]) == []
        assert await ready.snapshot() == before
        assert len(ready.consumer.deferred) == 1
    await ready.client.hset(ready.keys.job(lease.job_id), "status", "done")
    assert await ready.claimer.claim([message]) == []
    assert await ready.pending() == 0
    assert await dead_letters(ready) == []


async def test_a_message_that_was_deleted_meanwhile(ready: WorkerHarness) -> None:
    await ready.post()
    [message] = await ready.messages()
    await ready.client.xdel(ready.keys.queue, message.id)
    assert await ready.claimer.claim([Message.read(message.id, {})]) == []
    assert await ready.pending() == 0


async def test_one_corrupt_job_does_not_fail_the_batch(ready: WorkerHarness) -> None:
    jobs = await ready.post(5)
    await ready.client.delete(ready.keys.job(jobs[2]))
    await ready.client.set(ready.keys.job(jobs[2]), "a string")
    attempts = await ready.claimer.claim(await ready.messages())
    assert [attempt.lease.job_id for attempt in attempts] == jobs[:2] + jobs[3:]
    [(reason, _)] = await dead_letters(ready)
    assert reason == b"job_keys_corrupt"
    assert await ready.pending() == 4


@pytest.mark.parametrize("bad", ["no-id", "no-hash", "corrupt"])
async def test_failed_dead_letters_do_not_stop_other_jobs(ready: WorkerHarness, bad: str) -> None:
    """The bad message stays pending; the others in the batch run."""
    await ready.client.set(ready.keys.dead_letters, "not a stream")
    first = await ready.post(2)
    if bad == "no-id":
        await ready.client.xadd(ready.keys.queue, {"a": "b"})
    elif bad == "no-hash":
        await ready.client.xadd(ready.keys.queue, {"job_id": "nobody"})
    else:
        await ready.client.set(ready.keys.job("spoilt"), "a string")
        await ready.client.xadd(ready.keys.queue, {"job_id": "spoilt"})
    second = await ready.post(2)
    attempts = await ready.claimer.claim(await ready.messages())
    assert [attempt.lease.job_id for attempt in attempts] == first + second


async def test_every_claim_has_its_own_token(ready: WorkerHarness) -> None:
    await ready.post(10)
    messages = await ready.messages()
    halves = await asyncio.gather(
        ready.claimer.claim(messages[:5]), ready.claimer.claim(messages[5:])
    )
    tokens = {attempt.lease.token for half in halves for attempt in half}
    assert len(tokens) == 10
