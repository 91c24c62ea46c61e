"""SAVE_CHECKPOINT: stored for later attempts, only by the current attempt, after its events."""

from __future__ import annotations

import pytest

from common.contracts.queue import Answer
from common.jobs.store import Lease
from tests.common.kit import DONE, Scene, note

STEP = b'{"call":"c1","output":"sent"}'


async def save(scene: Scene, lease: Lease, name: str = "a", value: bytes = STEP, **rest: object):  # type: ignore[no-untyped-def]
    return await scene.store.save(lease, scene.worker, name, value, **rest)


async def test_a_checkpoint_is_a_field_of_the_lease(scene: Scene) -> None:
    lease = await scene.running()
    assert await save(scene, lease, "tool 1") is Answer.OK
    assert (await scene.held(lease.job_id))[b"step:tool 1"] == STEP
    assert await scene.store.saved(lease) == {"tool 1": STEP}
    assert await scene.types(lease.job_id) == [b"queued", b"running"]
    assert len(await scene.job(lease.job_id)) == 9


async def test_a_repeat_changes_nothing_and_another_value_replaces(scene: Scene) -> None:
    lease = await scene.running()
    await save(scene, lease)
    before = await scene.snapshot()
    assert await save(scene, lease) is Answer.OK
    assert await scene.snapshot() == before
    assert await save(scene, lease, value=b"2") is Answer.OK
    assert await scene.store.saved(lease) == {"a": b"2"}


async def test_events_are_written_before_their_checkpoint_and_once(scene: Scene) -> None:
    lease = await scene.running()
    await scene.emit(lease, 1, [note("one")])
    for _ in range(2):  # the second as after a lost reply
        await save(scene, lease, first=2, events=[note("two"), note("three")])
    await scene.emit(lease, 2, [note("two"), note("three"), note("four")])
    said = [event[b"data"] for event in (await scene.events(lease.job_id))[2:]]
    assert said == [b'{"text":"%s"}' % word for word in (b"one", b"two", b"three", b"four")]


@pytest.mark.parametrize("handed_back", ["retry", "release", "silent"])
async def test_the_next_attempt_reads_the_checkpoints(scene: Scene, handed_back: str) -> None:
    first = await scene.running()
    await save(scene, first, "a", b"1")
    await save(scene, first, "b", b"2")
    if handed_back == "silent":
        second = await scene.take_over(first)
    else:
        await (scene.retry(first) if handed_back == "retry" else scene.release(first))
        second = await scene.again(first, "t2")
    assert await scene.store.saved(second) == {"a": b"1", "b": b"2"}
    await save(scene, second, "b", b"3")
    third = await scene.take_over(second, "t3")
    assert await scene.store.saved(third) == {"a": b"1", "b": b"3"}
    await scene.finish(third, DONE)
    assert await scene.held(third.job_id) == {}


async def test_a_finished_attempt_saves_nothing(scene: Scene) -> None:
    first = await scene.running()
    second = await scene.take_over(first)
    before = await scene.snapshot()
    for zombie in (first, first._replace(attempt=2), second._replace(token="t1")):
        assert await save(scene, zombie, first=1, events=[note("late")]) is Answer.LOST
        assert await scene.store.saved(zombie) is None
    assert await scene.snapshot() == before
    await scene.retry(second)
    before = await scene.snapshot()
    assert await save(scene, second) is Answer.LOST
    assert await scene.snapshot() == before


async def test_an_ended_or_missing_job_stores_nothing(scene: Scene) -> None:
    lease = await scene.running()
    await scene.finish(lease)
    before = await scene.snapshot()
    assert await save(scene, lease) is Answer.LOST
    assert await scene.store.saved(lease) is None
    assert await scene.snapshot() == before
    gone = await scene.running("t2")
    await scene.client.delete(scene.keys.job(gone.job_id))
    before = await scene.snapshot()
    assert await save(scene, gone) is Answer.GONE
    assert await scene.snapshot() == before


async def test_saving_refreshes_the_ttl(scene: Scene) -> None:
    lease = await scene.running(ttl_s=500)
    keys = scene.keys
    for key in (keys.job(lease.job_id), keys.events(lease.job_id), keys.lease(lease.job_id)):
        await scene.client.expire(key, 10)
    await save(scene, lease)
    for key in (keys.job(lease.job_id), keys.events(lease.job_id), keys.lease(lease.job_id)):
        assert 490 <= await scene.client.ttl(key) <= 500


async def test_a_job_with_a_cancel_request_may_still_save(scene: Scene) -> None:
    """Its handler was asked to stop in an orderly way."""
    lease = await scene.running()
    await scene.cancel(lease.job_id)
    assert await save(scene, lease) is Answer.OK


async def test_without_its_events_a_checkpoint_is_not_written(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.set(scene.keys.events(lease.job_id), "no stream", ex=60)
    with pytest.raises(Exception, match="WRONGTYPE"):
        await save(scene, lease, first=1, events=[note("lost")])
    assert await scene.store.saved(lease) == {}


async def test_the_fence_has_what_a_script_compares(scene: Scene) -> None:
    lease = await scene.running()
    fence = scene.store.fence(lease)
    held = await scene.client.hmget(fence.lease_key, "attempt", "token")
    assert held == [str(fence.attempt).encode(), fence.token.encode()]
