"""A reader that shares slots waits for readers with a backlog, and not for idle ones."""

from __future__ import annotations

import asyncio

from common.contracts.jobs import JobKeys
from tests.support.backends import Backend
from tests.worker.conftest import RigMaker
from tests.worker.kit import Rig, within
from tests.worker.queue.test_recovery import IMPATIENT
from worker.queue.fair_share import FairShare
from worker.queue.recovery import Recovery
from worker.queue.slots import Slots

SLOTS = 2


async def test_an_idle_reader_is_not_waited_for() -> None:
    fair_share = FairShare(Slots(SLOTS))
    slow = fair_share.join()
    reservation = await slow.reserve(SLOTS)
    assert reservation is not None
    slow.release(reservation, reservation.count)  # as many as asked for: there may be more
    ahead = fair_share.join()
    ahead.charge(100)
    reserving = asyncio.ensure_future(ahead.reserve(1))
    await asyncio.sleep(0.01)
    assert not reserving.done()
    slow.mark_idle()
    assert await within(5, reserving) is not None


async def test_a_finished_recovery_scan_is_not_waited_for(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    """All slots were used, and the scan of the pending list has ended."""
    worker: Rig = rig(max_inflight=SLOTS)
    await worker.group()
    await worker.post(SLOTS)
    await worker.take(SLOTS, "dead")
    fair_share = FairShare(worker.slots)
    recovery = Recovery(
        *(backend.wire(), keys.queue, IMPATIENT, worker.slots, worker.consumer.admission),
        worker.consumer.deferred,
        share=fair_share.join(reads=False),
    )
    assert await recovery.run_once() == SLOTS
    ahead = fair_share.join()
    ahead.charge(100)
    assert await within(5, ahead.reserve(1)) is not None
