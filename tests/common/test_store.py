"""The operations of the job store, on every backend."""

from __future__ import annotations

import uuid

from common.contracts.jobs import JobKeys
from common.contracts.scripts import Answer
from common.store import Claim, Ending, JobStore, Lease, NewJob, PendingEvent, WorkerIdentity
from tests.backends import Backend


def new_job(**changes: object) -> NewJob:
    fields: dict[str, object] = {
        "job_id": str(uuid.uuid4()),
        "task": "chat",
        "payload": b'{"text":"hello"}',
        "ttl_s": 3600,
    }
    return NewJob(**{**fields, **changes})  # type: ignore[arg-type]


async def test_a_job_goes_from_queued_to_done(
    store: JobStore, backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> None:
    job = new_job()
    client = backend.client()
    await client.xgroup_create(keys.queue, worker.group, id="0", mkstream=True)
    accepted = await store.enqueue(job, worker.group, 200)
    assert accepted == (job.job_id, False)
    [[_, [(message_id, fields)]]] = await client.xreadgroup(
        worker.group, worker.consumer, {keys.queue: ">"}
    )
    assert set(fields) == {b"job_id", b"task", b"payload"}
    [reply] = await store.begin([Claim(job.job_id, message_id.decode(), "t1")], worker)
    assert reply.answer is Answer.RUN
    assert int(reply.value) == 1
    lease = Lease(job.job_id, message_id.decode(), 1, "t1")
    event = PendingEvent("message", "worker.echo", b'{"text":"hi"}')
    assert await store.emit(lease, worker, 1, [event]) is Answer.OK
    ending = Ending("done", "worker.done", b'{"ms":1}', result=b'{"text":"hi"}')
    assert await store.finish(lease, worker, ending, 2, []) is Answer.OK
    assert (await client.xpending(keys.queue, worker.group))["pending"] == 0
    entries = await client.xrange(keys.events(job.job_id))
    assert [fields[b"type"] for _, fields in entries] == [
        b"queued",
        b"running",
        b"message",
        b"done",
    ]
    assert all(set(fields) == {b"type", b"ts", b"step", b"data"} for _, fields in entries)
    assert len(await client.hgetall(keys.job(job.job_id))) == 9
    assert not await client.exists(keys.lease(job.job_id))
