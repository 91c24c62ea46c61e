"""SAVE_CHECKPOINT: stored for later attempts, only by the current attempt, after its events."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.queue import Answer
from common.jobs.store import Lease
from tests.support.store.jobs import DONE, StoreHarness, note

STEP = b'{"call":"c1","output":"sent"}'


async def save(
    harness: StoreHarness, lease: Lease, name: str = "a", value: bytes = STEP, **rest: object
) -> Any:
    return await harness.store.save(lease, harness.worker, name, value, **rest)


async def test_a_checkpoint_is_a_field_of_the_lease(harness: StoreHarness) -> None:
    lease = await harness.running(ttl_s=500)
    await harness.set_ttls(lease.job_id, 10)
    assert await save(harness, lease, "tool 1") is Answer.OK
    assert (await harness.held(lease.job_id))[b"step:tool 1"] == STEP
    assert await harness.store.saved(lease) == {"tool 1": STEP}
    assert await harness.types(lease.job_id) == [b"queued", b"running"]
    assert len(await harness.job(lease.job_id)) == 9
    await harness.check_ttls(lease.job_id, 500)
    async with harness.unchanged():
        assert await save(harness, lease, "tool 1") is Answer.OK
    assert await save(harness, lease, "tool 1", b"2") is Answer.OK
    assert await harness.store.saved(lease) == {"tool 1": b"2"}


async def test_events_are_written_before_their_checkpoint_and_once(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.emit(lease, 1, [note("one")])
    for _ in range(2):  # the second as after a lost reply
        await save(harness, lease, first=2, events=[note("two"), note("three")])
    await harness.emit(lease, 2, [note("two"), note("three"), note("four")])
    said = (await harness.data(lease.job_id))[2:]
    assert said == [b'{"text":"%s"}' % word for word in (b"one", b"two", b"three", b"four")]


@pytest.mark.parametrize("handed_back", ["retry", "release", "silent"])
async def test_the_next_attempt_reads_the_checkpoints(
    harness: StoreHarness, handed_back: str
) -> None:
    first = await harness.running()
    await save(harness, first, "a", b"1")
    await save(harness, first, "b", b"2")
    if handed_back == "silent":
        second = await harness.take_over(first)
    else:
        await (harness.retry(first) if handed_back == "retry" else harness.release(first))
        second = await harness.again(first, "t2")
    assert await harness.store.saved(second) == {"a": b"1", "b": b"2"}
    await save(harness, second, "b", b"3")
    third = await harness.take_over(second, "t3")
    assert await harness.store.saved(third) == {"a": b"1", "b": b"3"}
    await harness.finish(third, DONE)
    assert await harness.held(third.job_id) == {}


async def test_without_its_events_a_checkpoint_is_not_written(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.client.set(harness.keys.events(lease.job_id), "no stream", ex=60)
    with pytest.raises(Exception, match="WRONGTYPE"):
        await save(harness, lease, first=1, events=[note("lost")])
    assert await harness.store.saved(lease) == {}
    # A handler that was asked to stop may still save.
    await harness.client.delete(harness.keys.events(lease.job_id))
    await harness.cancel(lease.job_id)
    assert await save(harness, lease) is Answer.OK


async def test_the_fence_has_what_a_script_compares(harness: StoreHarness) -> None:
    lease = await harness.running()
    fence = harness.store.fence(lease)
    held = await harness.client.hmget(fence.lease_key, "attempt", "token")
    assert held == [str(fence.attempt).encode(), fence.token.encode()]
