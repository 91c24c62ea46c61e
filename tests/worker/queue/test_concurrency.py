"""Never more than MAX_INFLIGHT jobs run, no matter how their messages were taken."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from sluice.worker.errors import TransientError
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate
from tests.support.worker.harness import MakeWorker

LIMIT = 3


class FlakyGate(Gate):
    """A handler that counts its jobs; flaky ones fail twice."""

    async def __call__(self, context: Any, payload: Any) -> int:
        self.seconds = random.uniform(0, 0.004)
        await super().__call__(context, payload)
        if payload.get("flaky") and self.attempts[context.job_id] < 3:
            raise TransientError("again", retry_after_s=random.uniform(0, 0.01))
        return 1


async def test_new_recovered_and_deferred_jobs_share_one_limit(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 0.03)
    gate = FlakyGate()
    worker = make_worker(gate, max_inflight=LIMIT, count=16)
    await worker.group()
    left = await worker.post(12)
    ids = await worker.take(12, "dead")  # taken over by the recovery: idle for long
    await worker.client.xclaim(
        worker.keys.queue, "workers", "dead", 0, ids, idle=60_000, justid=True
    )
    own = await worker.post(6)
    await worker.take(6, "c1")  # pending of an earlier process with the same name
    flaky = await worker.post(8, payload=b'{"flaky":1}')  # deferred
    fresh = await worker.post(12)  # read by the reader
    worker.start(recover=True)
    fresh += await worker.post(5)
    assert await worker.ended([*left, *own, *flaky, *fresh]) == {b"done"}
    assert gate.most == LIMIT
    await worker.all_acked()
    assert {gate.attempts[job_id] for job_id in flaky} == {3}
    assert {gate.attempts[job_id] for job_id in [*left, *own, *fresh]} == {1}
    await eventually(lambda: worker.slots.free == LIMIT)
    assert worker.slots._reserved == 0


async def test_an_offer_beyond_the_free_slots_waits(make_worker: MakeWorker) -> None:
    """Reader and recovery may both have counted on the same slot, or offer the same message."""
    gate = FlakyGate()
    worker = make_worker(gate, max_inflight=2)
    await worker.group()
    jobs = await worker.post(6)
    messages = await worker.messages()
    worker.start()
    worker.consumer.admission.offer(messages[:4])
    worker.consumer.admission.offer(messages[4:])
    assert len(worker.consumer.deferred) == 4
    worker.consumer.admission.offer(messages)
    for message in messages:
        worker.consumer.deferred.add(message.id)
        worker.consumer.deferred.add(message.id)
    assert await worker.ended(jobs) == {b"done"}
    assert gate.most <= 2
    await worker.all_acked()
    await eventually(lambda: worker.slots.free == 2)
    assert set(gate.attempts.values()) == {1}
    for job_id in jobs:
        assert await worker.types(job_id) == [b"queued", b"running", b"done"]


@pytest.mark.fakeredis_only
async def test_a_job_whose_reserved_slot_was_taken_is_released(make_worker: MakeWorker) -> None:
    worker = make_worker(max_inflight=1)
    attempt = await worker.attempt()
    late = worker.slots.reserve(1)
    late.expired = True
    worker.slots.add_reserved(1)
    await worker.consumer.admission.start([attempt], late)
    assert await worker.types(attempt.lease.job_id) == [b"queued", b"running", b"released"]


@pytest.mark.fakeredis_only
async def test_deferred_messages_are_kept_after_an_error(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.deferred._BACKOFF_S", 0.01)
    worker = make_worker()
    await worker.group()
    jobs = await worker.post(3)
    deferred, claim = worker.consumer.deferred, worker.consumer.deferred._claim
    errors: list[Exception] = [ConnectionError("away"), KeyError("unexpected")]

    async def fail_twice(*args: Any, **rest: Any) -> Any:
        if errors:
            raise errors.pop()
        return await claim(*args, **rest)

    monkeypatch.setattr(deferred, "_claim", fail_twice)
    for message_id in await worker.take(3):
        deferred.add(message_id)
    worker.start()
    assert await worker.ended(jobs) == {b"done"}
    assert not errors


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("free", [False, True], ids=["no-slot", "slot"])
async def test_messages_that_wait_for_a_shared_slot_survive_a_cancel(
    make_worker: MakeWorker, free: bool
) -> None:
    worker = make_worker(max_inflight=1)
    await worker.group()
    await worker.post(1)
    [message_id] = await worker.take(1)
    deferred = worker.consumer.deferred
    worker.slots.reservation_ttl_s = 60.0  # as if several queues shared the slots
    worker.slots.add_reserved(1)
    deferred.add(message_id)
    waiting = asyncio.create_task(deferred._wait_for_slots())
    await eventually(lambda: worker.slots.urgent == 1)
    if free:
        worker.slots.remove_reserved(1)
    waiting.cancel()
    await asyncio.wait({waiting})
    await eventually(lambda: len(deferred) == 1)
    assert worker.slots.free == int(free)
