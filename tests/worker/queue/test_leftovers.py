"""A worker that restarts with the same consumer name takes its pending messages back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from sluice.common.jobs.store import WorkerIdentity
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker

NAME = "c1"
#: Less than a third of a lease, however slow this machine is.
SOON_MS = 9000


IDENTITY = WorkerIdentity("workers", NAME, 30_000, 600)


async def test_messages_that_were_read_but_not_begun_run_at_once(
    make_worker: MakeWorker, monkeypatch: Any
) -> None:
    """More than a page and than slots; messages of another consumer are not taken."""
    monkeypatch.setattr("sluice.worker.queue.recovery.PAGE", 7)
    worker = make_worker(identity=IDENTITY, max_inflight=3)
    await worker.group()
    jobs = await worker.post(20)
    await worker.take(20, NAME)
    others = await worker.post(2)
    await worker.take(2, "other")
    before = time.monotonic()
    assert await worker.consumer.recovery.reclaim_own() == 20
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    assert (time.monotonic() - before) * 1000 < SOON_MS
    for job_id in jobs:
        assert (await worker.types(job_id)).count(b"running") == 1
    assert {(await worker.job(job_id))[b"status"] for job_id in others} == {b"queued"}
    left = await worker.client.xpending_range(worker.keys.queue, "workers", "-", "+", 1000)
    assert {entry["consumer"] for entry in left} == {b"other"}


async def test_a_job_that_was_begun_runs_when_the_old_lease_expires(
    make_worker: MakeWorker,
) -> None:
    """Not a whole lease after it was claimed."""
    worker = make_worker(identity=IDENTITY)
    lease = await worker.running()
    began_at = int((await worker.events(lease.job_id))[-1][b"ts"])
    ends_at = began_at + 400  # it was last renewed long ago
    client: Any = worker.client
    await client.hset(worker.keys.lease(lease.job_id), "deadline_ms", str(ends_at))
    worker.start(recover=True)
    assert await worker.settled(lease.job_id) == b"done"
    story = await worker.events(lease.job_id)
    [first, second] = [int(event[b"ts"]) for event in story if event[b"type"] == b"running"]
    assert first == began_at
    assert ends_at <= second < ends_at + SOON_MS
    assert json.loads(story[2][b"data"]) == {"attempt": 2}
    await worker.all_acked()


async def test_pending_messages_that_were_deleted_or_ended_are_skipped(
    make_worker: MakeWorker,
) -> None:
    worker = make_worker(identity=IDENTITY)
    await worker.group()
    ended, _, expired, good = await worker.post(4)
    ids = await worker.take(4, NAME)
    await worker.client.hset(worker.keys.job(ended), "status", "done")
    await worker.client.xdel(worker.keys.queue, ids[1])
    await worker.client.delete(worker.keys.job(expired), worker.keys.events(expired))
    worker.start(recover=True)
    assert await worker.settled(good) == b"done"

    async def only_the_deleted() -> bool:
        return await worker.pending() <= 1  # Redis 6.2 keeps a deleted entry pending

    await eventually(only_the_deleted)
    assert (await worker.types(ended))[-1] == b"done"


async def test_a_delayed_retry_of_the_old_process_keeps_its_time(make_worker: MakeWorker) -> None:
    worker = make_worker(identity=IDENTITY)
    lease = await worker.running()
    await worker.store.retry(lease, worker.worker, 300, b'{"kind":"x"}', b"{}")
    worker.start(recover=True)
    assert await worker.settled(lease.job_id) == b"done"
    events = await worker.events(lease.job_id)
    [failed_at, begun_at] = [int(event[b"ts"]) for event in events[2:4]]
    assert 300 <= begun_at - failed_at < SOON_MS


async def test_two_workers_with_the_same_name_run_nothing_twice(make_worker: MakeWorker) -> None:
    runs: Counter[tuple[str, int]] = Counter()
    inside: Counter[str] = Counter()
    twice: list[str] = []

    async def handler(context: Any, payload: Any) -> None:
        runs[context.job_id, context.attempt] += 1
        inside[context.job_id] += 1
        if inside[context.job_id] > 1:
            twice.append(context.job_id)
        await asyncio.sleep(0.05)
        inside[context.job_id] -= 1

    twins = [make_worker(handler, identity=IDENTITY, max_inflight=3) for _ in range(2)]
    jobs = await twins[0].post(20)
    twins[0].start(recover=True)
    await eventually(lambda: len(runs) >= 3)
    twins[1].start(recover=True)  # takes "back" the messages that the first one runs
    jobs += await twins[0].post(20)
    assert await twins[0].ended(jobs) == {b"done"}
    await twins[0].all_acked()
    assert twice == []
    assert {attempt for _, attempt in runs} == {1}
    assert set(runs.values()) == {1}
    for job_id in jobs:
        assert await twins[0].types(job_id) == [b"queued", b"running", b"done"]


async def test_stopping_a_worker_keeps_the_jobs_of_its_namesake(make_worker: MakeWorker) -> None:
    """It releases all messages of its name, also those of the other one: the lease decides."""
    begun, let_go = [], asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        begun.append(context.attempt)
        await let_go.wait()

    first, second, heir = (
        make_worker(handler, identity=IDENTITY._replace(consumer=name))
        for name in (NAME, NAME, "heir")
    )
    # Nothing takes the message back before the third worker has tried: neither the recovery nor a
    # renewal, which every message on the control channel triggers.
    first.start(listen=False)
    [job_id] = await first.post()
    await eventually(lambda: begun)
    second.start(recover=True)
    heir.start(recover=True)
    await second.stop(0.0)
    # The third worker claims it, is refused, and defers the message.
    await eventually(
        lambda: heir.consumer.counters.for_task("chat").reclaimed and len(heir.consumer.deferred)
    )
    deadlines: set[bytes] = set()

    async def renewed_often() -> bool:
        first.leases.wake()
        deadlines.add(await first.client.hget(first.keys.lease(job_id), "deadline_ms"))
        return len(deadlines) > 3

    await eventually(renewed_often)
    assert begun == [1]
    let_go.set()
    assert await first.settled(job_id) == b"done"
    assert await first.types(job_id) == [b"queued", b"running", b"done"]
    await first.all_acked()


@pytest.mark.fakeredis_only
async def test_own_pending_messages_are_taken_back_once(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 0.01)
    recovery = make_worker().consumer.recovery
    calls: Counter[str] = Counter()

    async def reclaim_own() -> int:
        calls["own"] += 1
        if calls["own"] == 1:
            raise ConnectionError("away")
        return 0

    async def run_once() -> int:
        calls["scan"] += 1
        return 0

    monkeypatch.setattr(recovery, "reclaim_own", reclaim_own)
    monkeypatch.setattr(recovery, "run_once", run_once)
    running = asyncio.create_task(recovery.run())
    await eventually(lambda: calls["scan"] > 3)
    running.cancel()
    assert calls["own"] == 2  # the first one failed
