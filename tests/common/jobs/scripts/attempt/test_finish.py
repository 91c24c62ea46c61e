"""FINISH: one end, by the attempt that owns the job, and the ack last of all."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.queue import Answer
from tests.common.kit import DONE, FAILED, Scene, note


@pytest.mark.parametrize("ending", [DONE, FAILED])
async def test_ok_writes_result_event_and_ack(scene: Scene, ending: object) -> None:
    lease = await scene.running(ttl_s=90)
    before = await scene.job(lease.job_id)
    await scene.client.expire(scene.keys.job(lease.job_id), 5)
    await scene.client.expire(scene.keys.events(lease.job_id), 5)
    assert await scene.finish(lease, ending) is Answer.OK
    job = await scene.job(lease.job_id)
    assert len(job) == 9
    assert job[b"status"] == ending.status.encode()
    assert (job[b"result"], job[b"error"]) == (ending.result, ending.error)
    assert int(job[b"updated_ts"]) >= int(before[b"updated_ts"])
    assert job[b"created_ts"] == before[b"created_ts"]
    last = (await scene.events(lease.job_id))[-1]
    assert last == {
        b"type": ending.status.encode(),
        b"ts": job[b"updated_ts"],
        b"step": ending.step.encode(),
        b"data": ending.data,
    }
    assert await scene.pending() == 0
    assert not await scene.client.exists(scene.keys.lease(lease.job_id))
    for key in (scene.keys.job(lease.job_id), scene.keys.events(lease.job_id)):
        assert 80 < await scene.client.ttl(key) <= 90
    assert (await scene.store.counts()).ended == 1
    assert await scene.client.ttl(scene.keys.counts) > 0


async def test_unsent_events_come_before_the_end(scene: Scene) -> None:
    lease = await scene.running()
    await scene.emit(lease, 1, [note("a")])
    assert await scene.finish(lease, first=2, events=[note("b"), note("c")]) is Answer.OK
    data = [event[b"data"] for event in await scene.events(lease.job_id)]
    assert data[2:] == [b'{"text":"a"}', b'{"text":"b"}', b'{"text":"c"}', DONE.data]


async def test_a_repeated_call_changes_nothing(scene: Scene) -> None:
    lease = await scene.running()
    await scene.finish(lease, first=1, events=[note("a")])
    before = await scene.snapshot()
    assert await scene.finish(lease, first=1, events=[note("a")]) is Answer.ALREADY
    assert await scene.finish(lease, FAILED) is Answer.ALREADY
    assert await scene.snapshot() == before
    assert (await scene.store.counts()).ended == 1


async def test_a_superseded_attempt_can_neither_end_nor_ack(scene: Scene) -> None:
    zombie = await scene.running()
    heir = await scene.take_over(zombie)
    before = await scene.snapshot()
    assert await scene.finish(zombie, FAILED, first=1, events=[note("z")]) is Answer.LOST
    assert await scene.snapshot() == before
    assert await scene.pending() == 1
    assert await scene.finish(heir) is Answer.OK
    assert await scene.finish(zombie, FAILED) is Answer.ALREADY
    assert (await scene.job(heir.job_id))[b"status"] == b"done"
    assert await scene.types(heir.job_id) == [b"queued", b"running", b"running", b"done"]


async def test_the_attempt_number_alone_is_not_enough(scene: Scene) -> None:
    """If the lease key is lost, attempts are counted from one again."""
    zombie = await scene.running("t1")
    await scene.client.delete(scene.keys.lease(zombie.job_id))
    heir = await scene.take_over(zombie, "t2")
    assert heir.attempt == zombie.attempt
    before = await scene.snapshot()
    assert await scene.finish(zombie, FAILED) is Answer.LOST
    assert await scene.snapshot() == before
    assert await scene.finish(heir) is Answer.OK


async def test_already_acks_a_redelivered_message(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.hset(scene.keys.job(lease.job_id), "status", "canceled")
    assert await scene.finish(lease) is Answer.ALREADY
    assert await scene.pending() == 0
    assert (await scene.job(lease.job_id))[b"status"] == b"canceled"


async def test_an_ack_implies_a_terminal_event(scene: Scene) -> None:
    """I3: a third-party worker set the status but died before its event. FINISH acks, so it must
    write a terminal event as BEGIN does; otherwise clients would wait for ever."""
    lease = await scene.running()
    await scene.client.hset(scene.keys.job(lease.job_id), "status", "canceled")
    assert await scene.finish(lease) is Answer.ALREADY
    assert await scene.pending() == 0
    assert (await scene.types(lease.job_id))[-1] == b"canceled"


async def test_a_result_without_a_job_is_dropped_and_acked(scene: Scene) -> None:
    lease = await scene.running()
    gone = [key(lease.job_id) for key in (scene.keys.job, scene.keys.events, scene.keys.lease)]
    await scene.client.delete(*gone)
    assert await scene.finish(lease) is Answer.GONE
    assert await scene.pending() == 0
    assert await scene.client.exists(*gone) == 0
    assert (await scene.store.counts()).ended == 0


async def test_a_missing_group_does_not_prevent_the_end(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.delete(scene.keys.queue)
    assert await scene.finish(lease) is Answer.OK
    assert (await scene.types(lease.job_id))[-1] == b"done"
    assert not await scene.client.exists(scene.keys.queue)


async def test_each_end_is_counted_once_in_one_call(scene: Scene) -> None:
    leases = [await scene.running(f"t{n}") for n in range(5)]
    twice = [*leases, *leases]
    answers = await asyncio.gather(*(scene.finish(lease) for lease in twice))
    assert answers == [Answer.OK] * 5 + [Answer.ALREADY] * 5
    assert (await scene.store.counts()).ended == 5


async def test_a_hint_is_published(scene: Scene) -> None:
    lease = await scene.running()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    line = scene.backend.wire(on_message=heard.put_nowait)
    await line.execute_command("SUBSCRIBE", scene.keys.hints)
    await scene.emit(lease, 1, [note("a")])
    assert await asyncio.wait_for(heard.get(), 5) == lease.job_id.encode()
    await scene.finish(lease)
    assert await asyncio.wait_for(heard.get(), 5) == lease.job_id.encode()
