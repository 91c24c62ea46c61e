"""Messages whose lease expired are taken over, and only those."""

from __future__ import annotations

import asyncio

import pytest

from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.queue.fair_share import FairShare
from sluice.worker.queue.recovery import Recovery
from sluice.worker.queue.slots import Slots
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness, within

#: Every message counts as expired at once.
IMPATIENT = WorkerIdentity("workers", "heir", 0, 600)


@pytest.fixture
async def worker(make_worker: MakeWorker) -> WorkerHarness:
    worker = make_worker(max_inflight=2)
    await worker.group()
    return worker


def recovery_of(worker: WorkerHarness, identity: WorkerIdentity = IMPATIENT) -> Recovery:
    return Recovery(
        worker.backend.wire(),
        worker.keys.queue,
        identity,
        worker.slots,
        worker.consumer.admission,
        worker.consumer.deferred,
    )


async def test_messages_of_a_dead_worker_are_run(worker: WorkerHarness) -> None:
    """The whole pending list is scanned as slots become free; deleted entries are skipped."""
    lost, *jobs = await worker.post(8)
    ids = await worker.take(8, "dead")
    await worker.client.xdel(worker.keys.queue, ids[0])
    recovery = recovery_of(worker)

    async def all_done() -> bool:
        return {(await worker.job(job_id))[b"status"] for job_id in jobs} == {b"done"}

    while not await all_done():
        await recovery.run_once()
        await asyncio.sleep(0)  # fakeredis replies without yielding to the loop
    assert (await worker.job(lost))[b"status"] == b"queued"
    assert await worker.pending() <= 1  # Redis 6.2 keeps a deleted entry pending


async def test_messages_are_taken_only_if_expired_and_a_slot_is_free(worker: WorkerHarness) -> None:
    await worker.post(1)
    await worker.take(1, "busy")
    assert await recovery_of(worker, worker.worker).run_once() == 0  # it was just read
    worker.slots.add_reserved(2)
    assert await recovery_of(worker).run_once() == 0
    worker.slots.remove_reserved(2)
    assert await recovery_of(worker).run_once() == 1


async def test_a_live_lease_is_respected_though_the_message_is_idle(worker: WorkerHarness) -> None:
    lease = await worker.running()
    assert await recovery_of(worker).run_once() == 1
    await worker.consumer.admission.wait_started(5)
    assert (await worker.types(lease.job_id)).count(b"running") == 1
    assert await worker.pending() == 1


async def test_many_pending_messages_are_taken_over_steadily(worker: WorkerHarness) -> None:
    """Not a few per second: a worker may die with thousands of deferred messages."""
    jobs = await worker.post(20)
    ids = await worker.take(20, "dead")
    await worker.client.xclaim(
        worker.keys.queue, "workers", "dead", 0, ids, idle=60_000, justid=True
    )
    worker.consumer.recovery._wait_s = 1.0  # between scans that found nothing
    worker.start(recover=True)
    assert await worker.ended(jobs, 4) == {b"done"}


async def test_an_error_frees_reserved_slots(worker: WorkerHarness) -> None:
    """A slot was granted when Redis had become unavailable: it is freed, and the scan retried."""
    recovery = recovery_of(worker, IMPATIENT._replace(lease_ms=300))
    failed = 0

    async def keep() -> None:
        nonlocal failed
        failed += 1
        raise ConnectionError("away")

    worker.slots.add_reserved(2)
    running = asyncio.create_task(recovery.run())
    await eventually(lambda: worker.slots.urgent == 1)  # it waits for a slot
    worker.consumer.deferred.renew = keep  # type: ignore[method-assign]
    worker.slots.remove_reserved(2)
    await eventually(lambda: failed)
    before = failed
    await eventually(lambda: worker.slots.free == 2)
    await asyncio.sleep(0.25)
    assert failed - before <= 5
    running.cancel()
    await asyncio.wait({running})
    assert (worker.slots.free, worker.slots.urgent) == (2, 0)


# -- fair share -------------------------------------------------------------------------------


async def test_an_idle_reader_is_not_waited_for() -> None:
    """A reader that shares slots waits only for readers with a backlog."""
    fair_share = FairShare(Slots(2))
    slow = fair_share.join()
    reservation = await slow.reserve(2)
    assert reservation is not None
    slow.release(reservation, reservation.count)  # as many as asked for: there may be more
    ahead = fair_share.join()
    ahead.charge(100)
    assert ahead.try_reserve(1) is None  # nor does a prefetch overtake it
    reserving = asyncio.ensure_future(ahead.reserve(1))
    await asyncio.sleep(0.01)
    assert not reserving.done()
    slow.mark_idle()
    assert await within(5, reserving) is not None


async def test_a_finished_recovery_scan_is_not_waited_for(worker: WorkerHarness) -> None:
    """All slots were used, and the scan of the pending list has ended."""
    await worker.post(2)
    await worker.take(2, "dead")
    fair_share = FairShare(worker.slots)
    recovery = Recovery(
        *(worker.backend.wire(), worker.keys.queue, IMPATIENT),
        *(worker.slots, worker.consumer.admission, worker.consumer.deferred),
        share=fair_share.join(reads=False),
    )
    assert await recovery.run_once() == 2
    ahead = fair_share.join()
    ahead.charge(100)
    assert await within(5, ahead.reserve(1)) is not None
