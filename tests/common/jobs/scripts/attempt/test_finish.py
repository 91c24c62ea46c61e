"""FINISH: one end, by the attempt that owns the job, and the ack last of all."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.queue import Answer
from tests.support.store.jobs import DONE, FAILED, StoreHarness, note


@pytest.mark.parametrize("ending", [DONE, FAILED])
async def test_ok_writes_result_event_and_ack(harness: StoreHarness, ending: object) -> None:
    lease = await harness.running(ttl_s=90)
    before = await harness.job(lease.job_id)
    await harness.set_ttls(lease.job_id, 5, "job", "events")
    assert await harness.finish(lease, ending) is Answer.OK
    job = await harness.job(lease.job_id)
    status = ending.status.encode()
    assert (job[b"status"], len(job)) == (status, 9)
    assert (job[b"result"], job[b"error"]) == (ending.result, ending.error)
    assert int(job[b"updated_ts"]) >= int(before[b"updated_ts"])
    assert job[b"created_ts"] == before[b"created_ts"]
    last = {b"type": status, b"ts": job[b"updated_ts"], b"step": ending.step.encode()}
    assert (await harness.events(lease.job_id))[-1] == {**last, b"data": ending.data}
    assert await harness.pending() == 0
    assert not await harness.held(lease.job_id)
    await harness.check_ttls(lease.job_id, 90, "job", "events")
    assert (await harness.store.counts()).ended == 1
    assert await harness.client.ttl(harness.keys.counts) > 0


async def test_unsent_events_come_before_the_end_once(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.emit(lease, 1, [note("a")])
    assert await harness.finish(lease, first=2, events=[note("b"), note("c")]) is Answer.OK
    data = (await harness.data(lease.job_id))[2:]
    assert data == [b'{"text":"a"}', b'{"text":"b"}', b'{"text":"c"}', DONE.data]
    async with harness.unchanged():
        assert await harness.finish(lease, first=2, events=[note("b")]) is Answer.ALREADY
        assert await harness.finish(lease, FAILED) is Answer.ALREADY
    assert (await harness.store.counts()).ended == 1
    leases = [await harness.running(f"t{n}") for n in range(5)]  # in one call
    answers = await asyncio.gather(*(harness.finish(lease) for lease in [*leases, *leases]))
    assert answers == [Answer.OK] * 5 + [Answer.ALREADY] * 5
    assert (await harness.store.counts()).ended == 6


async def test_a_superseded_attempt_can_neither_end_nor_ack(harness: StoreHarness) -> None:
    zombie = await harness.running()
    heir = await harness.take_over(zombie)
    assert await harness.finish(zombie, FAILED, first=1, events=[note("z")]) is Answer.LOST
    assert await harness.pending() == 1
    assert await harness.finish(heir) is Answer.OK
    assert await harness.finish(zombie, FAILED) is Answer.ALREADY
    assert await harness.status(heir.job_id) == b"done"
    assert await harness.types(heir.job_id) == [b"queued", b"running", b"running", b"done"]


async def test_an_ack_implies_a_terminal_event(harness: StoreHarness) -> None:
    """I3: a third-party worker set the status but died before its event. FINISH acks, so it must
    write a terminal event as BEGIN does; otherwise clients would wait for ever."""
    lease = await harness.running()
    await harness.client.hset(harness.keys.job(lease.job_id), "status", "canceled")
    assert await harness.finish(lease) is Answer.ALREADY
    assert await harness.pending() == 0
    assert await harness.status(lease.job_id) == b"canceled"
    assert (await harness.types(lease.job_id))[-1] == b"canceled"


async def test_a_missing_group_does_not_prevent_the_end(
    harness: StoreHarness,
) -> None:
    lease = await harness.running()
    await harness.client.delete(harness.keys.queue)
    assert await harness.finish(lease) is Answer.OK
    assert (await harness.types(lease.job_id))[-1] == b"done"
    assert not await harness.client.exists(harness.keys.queue)
