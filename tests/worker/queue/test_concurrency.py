"""Never more than MAX_INFLIGHT jobs run, no matter how their messages were taken."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.worker.kit import RigMaker
from worker.errors import TransientError

LIMIT = 3


class RunningCount:
    """A handler that counts how many jobs run at the same time."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.tries: dict[str, int] = {}

    async def handle(self, context: Any, payload: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.tries[context.job_id] = self.tries.get(context.job_id, 0) + 1
        try:
            await asyncio.sleep(random.uniform(0, 0.004))
        finally:
            self.inside -= 1
        if payload.get("flaky") and self.tries[context.job_id] < 3:
            raise TransientError("again", retry_after_s=random.uniform(0, 0.01))


async def test_new_recovered_and_deferred_jobs_share_one_limit(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.recovery.LONGEST_WAIT_S", 0.03)
    crowd = RunningCount()
    rigged = rig(crowd.handle, max_inflight=LIMIT, count=16)
    await rigged.group()
    left = await rigged.post(25)
    ids = await rigged.take(25, "dead")  # taken over by the recovery: idle for long
    await rigged.client.xclaim(
        rigged.keys.queue, "workers", "dead", 0, ids, idle=60_000, justid=True
    )
    own = await rigged.post(15)
    await rigged.take(15, "c1")  # pending of an earlier process with the same name
    flaky = await rigged.post(15, payload=b'{"flaky":1}')  # deferred
    fresh = await rigged.post(25)  # read by the reader
    rigged.start(recover=True)
    fresh += await rigged.post(10)
    assert await rigged.ended([*left, *own, *flaky, *fresh]) == {b"done"}
    assert crowd.most <= LIMIT
    assert crowd.most == LIMIT
    await rigged.all_acked()
    assert {crowd.tries[job_id] for job_id in flaky} == {3}
    assert {crowd.tries[job_id] for job_id in [*left, *own, *fresh]} == {1}
    await eventually(lambda: rigged.slots.free == LIMIT)
    assert rigged.slots._reserved == 0


async def test_an_offer_beyond_the_free_slots_waits(rig: RigMaker) -> None:
    """Reader and recovery may both have counted on the same slot."""
    crowd = RunningCount()
    rigged = rig(crowd.handle, max_inflight=2)
    await rigged.group()
    jobs = await rigged.post(6)
    messages = await rigged.messages()
    rigged.start()
    rigged.consumer.admission.offer(messages[:4])
    rigged.consumer.admission.offer(messages[4:])
    assert len(rigged.consumer.deferred) == 4
    assert await rigged.ended(jobs) == {b"done"}
    assert crowd.most <= 2
    await rigged.all_acked()


async def test_the_same_message_offered_twice_runs_once(rig: RigMaker) -> None:
    crowd = RunningCount()
    rigged = rig(crowd.handle, max_inflight=4)
    await rigged.group()
    jobs = await rigged.post(2)
    messages = await rigged.messages()
    rigged.start()
    rigged.consumer.admission.offer(messages)
    rigged.consumer.admission.offer(messages)
    for message in messages:
        rigged.consumer.deferred.add(message.id)
        rigged.consumer.deferred.add(message.id)
    assert await rigged.ended(jobs) == {b"done"}
    await rigged.all_acked()
    await eventually(lambda: rigged.slots.free == 4)
    assert set(crowd.tries.values()) == {1}
    for job_id in jobs:
        assert await rigged.types(job_id) == [b"queued", b"running", b"done"]


async def test_three_workers_share_the_jobs_and_none_exceeds_its_limit(real_rig: RigMaker) -> None:
    crowds = [RunningCount() for _ in range(3)]
    workers = [
        real_rig(
            crowd.handle,
            identity=WorkerIdentity("workers", f"c{number}", 30_000, 600),
            max_inflight=2,
        )
        for number, crowd in enumerate(crowds)
    ]
    await workers[0].group()
    for each in workers:
        each.start(recover=True)
    jobs = await workers[0].post(60) + await workers[0].post(20, payload=b'{"flaky":1}')
    assert await workers[0].ended(jobs) <= {b"done", b"error"}
    assert all(crowd.most <= 2 for crowd in crowds)
    assert sum(bool(crowd.tries) for crowd in crowds) > 1
    await workers[0].all_acked()
    for job_id in jobs:
        types = await workers[0].types(job_id)
        assert sum(kind in (b"done", b"error") for kind in types) == 1
        assert types.count(b"running") == types.count(b"retry") + 1
