"""Third-party producers and workers that know only the contract, alongside Sluice's."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

import pytest
from redis.exceptions import ResponseError

from sluice.common.aio import cancel
from sluice.common.jobs.store import WorkerIdentity
from tests.support.worker.harness import MakeWorker, WorkerHarness

pytestmark = pytest.mark.plain_names


async def third_party_post(
    rig: WorkerHarness, payload: str = '{"text":"hello"}', ttl_s: str = "60"
) -> str:
    """A producer that follows the contract, in plain redis-py."""
    client, job_id, now = rig.client, str(uuid.uuid4()), str(int(time.time() * 1000))
    await client.hset(
        f"job:{job_id}",
        mapping={
            "job_id": job_id, "task": "chat", "payload": payload, "status": "queued",
            "created_ts": now, "updated_ts": now, "ttl_s": ttl_s, "result": "", "error": "",
        },
    )  # fmt: skip
    await client.expire(f"job:{job_id}", 60)
    event = {"type": "queued", "ts": now, "step": "gateway.enqueue", "data": "{}"}
    await client.xadd(f"job:{job_id}:events", event)
    await client.expire(f"job:{job_id}:events", 60)
    queued = {"job_id": job_id, "task": "chat", "payload": payload}
    await client.xadd("jobs:stream", queued)
    return job_id


async def third_party_work(client: Any, consumer: str, finished: asyncio.Queue[str]) -> None:
    """A worker that follows the contract, in plain redis-py."""
    while True:
        reply = await client.xreadgroup(
            "workers", consumer, {"jobs:stream": ">"}, count=1, block=20
        )
        for message_id, fields in reply[0][1] if reply else []:
            job_id = fields[b"job_id"].decode()
            job, events = f"job:{job_id}", f"job:{job_id}:events"
            ttl_s = int(await client.hget(job, "ttl_s"))

            async def tell(
                type: str, data: str, events: str = events, job: str = job, ttl_s: int = ttl_s
            ) -> None:
                now = str(int(time.time() * 1000))
                event = {"type": type, "ts": now, "step": f"foreign.{type}", "data": data}
                await client.xadd(events, event)
                await client.expire(events, ttl_s)
                await client.expire(job, ttl_s)

            await client.hset(job, mapping={"status": "running", "updated_ts": "1"})
            await tell("running", "{}")
            await client.hset(job, mapping={"status": "done", "result": '"foreign"'})
            await tell("done", "{}")
            await client.xack("jobs:stream", "workers", message_id)
            finished.put_nowait(job_id)


async def test_jobs_of_a_third_party_producer_run(make_worker: MakeWorker) -> None:
    worker = make_worker()
    job_id = await third_party_post(worker)
    worker.start()
    assert await worker.settled(job_id) == b"done"
    record = await worker.job(job_id)
    assert len(record) == 9
    assert json.loads(record[b"result"])["text"] == "echo(task=chat): {'text': 'hello'}"
    assert await worker.types(job_id) == [b"queued", b"running", b"message", b"done"]
    for key in (worker.keys.job(job_id), worker.keys.events(job_id)):
        assert 50 < await worker.client.ttl(key) <= 60
    assert await worker.pending() == 0


async def test_a_job_of_a_third_party_producer_without_ttl_gets_one(
    make_worker: MakeWorker,
) -> None:
    worker = make_worker()
    jobs = [await third_party_post(worker, ttl_s=ttl_s) for ttl_s in ("", "0", "-1", "forever")]
    for job_id in jobs:
        await worker.client.persist(worker.keys.job(job_id))
        await worker.client.persist(worker.keys.events(job_id))
    worker.start()
    for job_id in jobs:
        assert await worker.settled(job_id) == b"done"
    assert await worker.without_ttl() == []


async def test_a_third_party_worker_shares_the_group(
    make_worker: MakeWorker, worker: WorkerIdentity
) -> None:
    ours = make_worker(max_inflight=1, count=1)
    await ours.group()
    finished: asyncio.Queue[str] = asyncio.Queue()
    foreign = asyncio.create_task(third_party_work(ours.backend.client(), "foreign", finished))
    try:
        jobs = await ours.post(3)
        for _ in jobs:
            await asyncio.wait_for(finished.get(), 10)
        ours.start()
        jobs += await ours.post(20)
        assert await ours.ended(jobs) == {b"done"}
        await ours.all_acked()
    finally:
        await cancel(foreign)
    await ours.stop()
    ends = [await ours.types(job_id) for job_id in jobs]
    assert all(types[-1] == b"done" and types.count(b"done") == 1 for types in ends)
    assert await ours.without_ttl() == []


async def test_a_third_party_worker_may_delete_its_messages(make_worker: MakeWorker) -> None:
    """With XACKDEL, which Redis has since 8.2, or with XACK and XDEL."""
    ours = make_worker()
    await ours.group()
    job_id = await third_party_post(ours)
    [message_id] = await ours.take(1, "foreign")
    await ours.client.hset(ours.keys.job(job_id), mapping={"status": "done", "result": "1"})
    try:
        command = ("XACKDEL", "jobs:stream", "workers", "IDS", 1, message_id)
        assert await ours.client.execute_command(*command) == [1]
    except ResponseError:  # unknown command
        await ours.client.xack("jobs:stream", "workers", message_id)
        await ours.client.xdel("jobs:stream", message_id)
    assert await ours.client.xlen("jobs:stream") == await ours.pending() == 0
    ours.start(recover=True)
    [last] = await ours.post()
    assert await ours.settled(last) == b"done"
    await ours.all_acked()
    assert (await ours.job(job_id))[b"result"] == b"1"
    assert await ours.letters() == []
