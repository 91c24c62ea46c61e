"""A worker that restarts with the same consumer name takes its pending messages back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker

NAME = "c1"
#: Less than a third of a lease, however slow this machine is.
SOON_MS = 9000


def identity(lease_ms: int) -> WorkerIdentity:
    return WorkerIdentity("workers", NAME, lease_ms, 600)


async def owner_of(rigged: Rig) -> set[bytes]:
    entries = await rigged.client.xpending_range(rigged.keys.queue, "workers", "-", "+", 1000)
    return {entry["consumer"] for entry in entries}


async def test_messages_that_were_read_but_not_begun_run_at_once(rig: RigMaker) -> None:
    rigged = rig(identity=identity(30_000))
    await rigged.group()
    jobs = await rigged.post(5)
    await rigged.take(5, NAME)
    rigged.start(recover=True)
    before = time.monotonic()
    assert await rigged.ended(jobs) == {b"done"}
    assert (time.monotonic() - before) * 1000 < SOON_MS
    for job_id in jobs:
        assert (await rigged.types(job_id)).count(b"running") == 1
    await rigged.all_acked()


async def test_a_job_that_was_begun_runs_when_the_old_lease_expires(rig: RigMaker) -> None:
    """Not a whole lease after it was claimed."""
    rigged = rig(identity=identity(30_000))
    lease = await rigged.running()
    began_at = int((await rigged.events(lease.job_id))[-1][b"ts"])
    ends_at = began_at + 1200  # it was last renewed long ago
    client: Any = rigged.client
    await client.hset(rigged.keys.lease(lease.job_id), "deadline_ms", str(ends_at))
    rigged.start(recover=True)
    assert await rigged.settled(lease.job_id) == b"done"
    story = await rigged.events(lease.job_id)
    [first, second] = [int(event[b"ts"]) for event in story if event[b"type"] == b"running"]
    assert first == began_at
    assert ends_at <= second < ends_at + SOON_MS
    assert json.loads(story[2][b"data"]) == {"attempt": 2}
    await rigged.all_acked()


async def test_more_pending_messages_than_a_page_and_than_slots(
    rig: RigMaker, monkeypatch: Any
) -> None:
    monkeypatch.setattr("worker.queue.recovery.PAGE", 7)
    rigged = rig(identity=identity(30_000), max_inflight=3)
    await rigged.group()
    jobs = await rigged.post(30)
    await rigged.take(30, NAME)
    foreign = await rigged.post(2)
    await rigged.take(2, "other")  # messages of another consumer are not taken
    assert await rigged.consumer.recovery.reclaim_own() == 30
    rigged.start()
    assert await rigged.ended(jobs) == {b"done"}
    assert {(await rigged.job(job_id))[b"status"] for job_id in foreign} == {b"queued"}
    assert await owner_of(rigged) == {b"other"}


async def test_pending_messages_that_were_deleted_or_ended_are_skipped(rig: RigMaker) -> None:
    rigged = rig(identity=identity(30_000))
    await rigged.group()
    ended, _, expired, good = await rigged.post(4)
    ids = await rigged.take(4, NAME)
    await rigged.client.hset(rigged.keys.job(ended), "status", "done")
    await rigged.client.xdel(rigged.keys.queue, ids[1])
    await rigged.client.delete(rigged.keys.job(expired), rigged.keys.events(expired))
    rigged.start(recover=True)
    assert await rigged.settled(good) == b"done"

    async def only_the_deleted() -> bool:
        return await rigged.pending() <= 1  # Redis 6.2 keeps a deleted entry pending

    await eventually(only_the_deleted)
    assert (await rigged.types(ended))[-1] == b"done"


async def test_a_delayed_retry_of_the_old_process_keeps_its_time(rig: RigMaker) -> None:
    rigged = rig(identity=identity(30_000))
    lease = await rigged.running()
    await rigged.store.retry(lease, rigged.worker, 500, b'{"kind":"x"}', b"{}")
    rigged.start(recover=True)
    assert await rigged.settled(lease.job_id) == b"done"
    events = await rigged.events(lease.job_id)
    [failed_at, begun_at] = [int(event[b"ts"]) for event in events[2:4]]
    assert 500 <= begun_at - failed_at < SOON_MS


async def test_two_workers_with_the_same_name_run_nothing_twice(rig: RigMaker) -> None:
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

    twins = [rig(handler, identity=identity(30_000), max_inflight=3) for _ in range(2)]
    await twins[0].group()
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


async def test_stopping_a_worker_keeps_the_jobs_of_its_namesake(
    rig: RigMaker,
) -> None:
    """It releases all messages of its name, also those of the other one: the lease decides."""
    begun, let_go = [], asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        begun.append(context.attempt)
        await let_go.wait()

    first, second, heir = (
        rig(handler, identity=identity(30_000)._replace(consumer=name))
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


async def test_own_pending_messages_are_taken_back_once(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.recovery.LONGEST_WAIT_S", 0.01)
    rigged = fake_rig()
    scans: list[int] = []
    take_back = rigged.consumer.recovery.reclaim_own

    async def counting() -> int:
        scans.append(1)
        if len(scans) == 1:
            raise ConnectionError("away")
        return await take_back()

    rigged.consumer.recovery.reclaim_own = counting  # type: ignore[method-assign]
    rounds: list[int] = []
    run_once = rigged.consumer.recovery.run_once

    async def noting() -> int:
        rounds.append(1)
        return await run_once()

    rigged.consumer.recovery.run_once = noting  # type: ignore[method-assign]
    await rigged.group()
    rigged.start(recover=True)
    await eventually(lambda: len(rounds) > 3)
    assert len(scans) == 2  # the first one failed
