"""Whoever shares places with others waits for those who read, and for nobody who does not."""

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

PLACES = 2


async def test_who_rests_is_waited_for_no_longer() -> None:
    turns = FairShare(Slots(PLACES))
    slow = turns.join()
    places = await slow.reserve(PLACES)
    assert places is not None
    slow.release(places, places.count)  # and so there may be more
    ahead = turns.join()
    ahead.charge(100)
    asking = asyncio.ensure_future(ahead.reserve(1))
    await asyncio.sleep(0.01)
    assert not asking.done()
    slow.mark_idle()
    assert await within(5, asking) is not None


async def test_who_has_looked_after_silent_workers_is_not_waited_for(
    rig: RigMaker, backend: Backend, keys: JobKeys
) -> None:
    """All places were used, and the list of pending messages has come to its end."""
    worker: Rig = rig(max_inflight=PLACES)
    await worker.group()
    await worker.post(PLACES)
    await worker.take(PLACES, "dead")
    turns = FairShare(worker.slots)
    recovery = Recovery(
        *(backend.wire(), keys.queue, IMPATIENT, worker.slots, worker.consumer.admission),
        worker.consumer.deferred,
        share=turns.join(reads=False),
    )
    assert await recovery.run_once() == PLACES
    ahead = turns.join()
    ahead.charge(100)
    assert await within(5, ahead.reserve(1)) is not None
