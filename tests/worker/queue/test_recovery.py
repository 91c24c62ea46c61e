"""Messages whose lease expired are taken over, and only those."""

from __future__ import annotations

import asyncio

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.support.backends import Backend
from tests.worker.conftest import RigMaker
from tests.worker.kit import Rig
from worker.queue.recovery import Recovery

#: Every message counts as expired at once.
IMPATIENT = WorkerIdentity("workers", "heir", 0, 600)


def recovery_of(worker: Rig, backend: Backend, keys: JobKeys, identity: WorkerIdentity) -> Recovery:
    return Recovery(
        backend.wire(),
        keys.queue,
        identity,
        worker.slots,
        worker.consumer.admission,
        worker.consumer.deferred,
    )


async def test_messages_of_a_dead_worker_are_run(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    worker: Rig = rig()
    await worker.group()
    jobs = await worker.post(3)
    await worker.take(3, "dead")
    assert await recovery_of(worker, backend, keys, IMPATIENT).run_once() == 3
    for job_id in jobs:
        assert await worker.settled(job_id) == b"done"
    assert await worker.pending() == 0


async def test_the_whole_pending_list_is_scanned_as_slots_become_free(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    worker: Rig = rig(max_inflight=2)
    await worker.group()
    jobs = await worker.post(7)
    await worker.take(7, "dead")
    recovery = recovery_of(worker, backend, keys, IMPATIENT)

    async def all_done() -> bool:
        return {(await worker.job(job_id))[b"status"] for job_id in jobs} == {b"done"}

    while not await all_done():
        await recovery.run_once()
        await asyncio.sleep(0)  # fakeredis replies without yielding to the loop
    assert await worker.pending() == 0


async def test_a_message_that_was_just_read_is_not_taken_over(
    rig: RigMaker, backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> None:
    rigged: Rig = rig()
    await rigged.group()
    await rigged.post(1)
    await rigged.take(1, "busy")
    assert await recovery_of(rigged, backend, keys, worker).run_once() == 0
    assert await rigged.pending() == 1


async def test_nothing_is_taken_without_a_free_slot(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    worker: Rig = rig(max_inflight=1)
    await worker.group()
    await worker.post(1)
    await worker.take(1, "dead")
    worker.slots.add_reserved(1)
    assert await recovery_of(worker, backend, keys, IMPATIENT).run_once() == 0


async def test_a_live_lease_is_respected_though_the_message_is_idle(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    worker: Rig = rig()
    lease = await worker.running()
    assert await recovery_of(worker, backend, keys, IMPATIENT).run_once() == 1
    await worker.consumer.admission.wait_started(5)
    assert (await worker.types(lease.job_id)).count(b"running") == 1
    assert await worker.pending() == 1


async def test_deleted_entries_are_skipped(rig: RigMaker, backend: Backend, keys: JobKeys) -> None:
    worker: Rig = rig()
    await worker.group()
    [lost, kept] = await worker.post(2)
    [first, _] = await worker.take(2, "dead")
    await worker.client.xdel(keys.queue, first)
    await recovery_of(worker, backend, keys, IMPATIENT).run_once()
    assert await worker.settled(kept) == b"done"
    assert (await worker.job(lost))[b"status"] == b"queued"


async def test_many_pending_messages_are_taken_over_steadily(rig: RigMaker) -> None:
    """Not a few per second: a worker may die with thousands of deferred messages."""
    worker: Rig = rig(max_inflight=2)
    await worker.group()
    jobs = await worker.post(40)
    ids = await worker.take(40, "dead")
    await worker.client.xclaim(
        worker.keys.queue, "workers", "dead", 0, ids, idle=60_000, justid=True
    )
    worker.start(recover=True)
    assert await worker.ended(jobs, 8) == {b"done"}


async def test_an_error_frees_reserved_slots(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    """A slot was granted when Redis had become unavailable: it is freed, and the scan retried."""
    worker: Rig = rig(max_inflight=1)
    await worker.group()
    recovery = recovery_of(worker, backend, keys, IMPATIENT._replace(lease_ms=300))
    failed = 0

    async def keep() -> None:
        nonlocal failed
        failed += 1
        raise ConnectionError("away")

    worker.slots.add_reserved(1)
    running = asyncio.create_task(recovery.run())
    await eventually(lambda: worker.slots.urgent == 1)  # it waits for a slot
    worker.consumer.deferred.renew = keep  # type: ignore[method-assign]
    worker.slots.remove_reserved(1)
    await eventually(lambda: failed)
    before = failed
    await eventually(lambda: worker.slots.free == 1)
    await asyncio.sleep(0.25)
    assert failed - before <= 5
    running.cancel()
    await asyncio.wait({running})
    assert (worker.slots.free, worker.slots.urgent) == (1, 0)
