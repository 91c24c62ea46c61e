"""RENEW and EMIT: writes of a running attempt, which no other may make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import common.jobs.scripts
from common.contracts.queue import Answer
from common.jobs.store import Lease
from tests.common.kit import DONE, FAILED, Scene, note


async def renewed(scene: Scene, lease: Lease) -> Answer:
    return (await scene.renew(lease)).answer


async def emitted(scene: Scene, lease: Lease) -> Answer:
    return await scene.emit(lease, 1, [note("late")])


WRITES = [renewed, emitted]
Write = Callable[[Scene, Lease], Awaitable[Answer]]


@pytest.mark.parametrize("write", WRITES)
async def test_a_superseded_attempt_writes_nothing(scene: Scene, write: Write) -> None:
    zombie = await scene.running()
    await scene.take_over(zombie)
    before = await scene.snapshot()
    assert await write(scene, zombie) is Answer.LOST
    # Neither the right attempt with a wrong token nor the reverse is enough.
    assert await write(scene, zombie._replace(attempt=2)) is Answer.LOST
    assert await write(scene, zombie._replace(token="t2")) is Answer.LOST
    assert await scene.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
async def test_after_the_end_nothing_is_written(scene: Scene, write: Write) -> None:
    lease = await scene.running()
    await scene.finish(lease)
    before = await scene.snapshot()
    assert await write(scene, lease) is Answer.LOST
    assert await scene.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
async def test_an_end_by_a_third_party_is_respected(scene: Scene, write: Write) -> None:
    lease = await scene.running()
    await scene.client.hset(scene.keys.job(lease.job_id), "status", "canceled")
    before = await scene.snapshot()
    assert await write(scene, lease) is Answer.LOST
    assert await scene.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
async def test_a_deleted_job_is_not_recreated(scene: Scene, write: Write) -> None:
    lease = await scene.running()
    await scene.client.delete(scene.keys.job(lease.job_id), scene.keys.events(lease.job_id))
    before = await scene.snapshot()
    assert await write(scene, lease) is Answer.GONE
    assert await scene.snapshot() == before


@pytest.mark.parametrize("write", WRITES)
async def test_ttls_are_refreshed(scene: Scene, write: Write) -> None:
    lease = await scene.running(ttl_s=90)
    names = [key(lease.job_id) for key in (scene.keys.job, scene.keys.events, scene.keys.lease)]
    for name in names:
        await scene.client.expire(name, 5)
    assert await write(scene, lease) is Answer.OK
    for name in names:
        assert 80 < await scene.client.ttl(name) <= 90
    await scene.client.hset(scene.keys.job(lease.job_id), "ttl_s", "0")
    assert await write(scene, lease) is Answer.OK
    for name in names:
        assert 590 < await scene.client.ttl(name) <= 600


@pytest.mark.parametrize("write", WRITES)
async def test_an_expired_lease_is_kept_until_it_is_taken_over(scene: Scene, write: Write) -> None:
    lease = await scene.running()
    await scene.expire(lease)
    assert await write(scene, lease) is Answer.OK


async def test_renew_extends_the_lease(scene: Scene) -> None:
    lease = await scene.running()
    await scene.expire(lease)
    await renewed(scene, lease)
    now_s, micros = await scene.client.time()
    deadline = int(await scene.client.hget(scene.keys.lease(lease.job_id), "deadline_ms"))
    assert 0 <= now_s * 1000 + micros // 1000 + scene.worker.lease_ms - deadline < 5000
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.BUSY
    assert await scene.types(lease.job_id) == [b"queued", b"running"]


async def test_renew_resets_idle_and_keeps_the_delivery_count(scene: Scene) -> None:
    lease = await scene.running()
    # Make the message look old: XCLAIM can set its idle time.
    await scene.backend.wire().execute_command(
        "XCLAIM", scene.keys.queue, "workers", "c1", 0, lease.message_id,
        "IDLE", 3_600_000, "RETRYCOUNT", 1, "JUSTID",
    )  # fmt: skip
    await renewed(scene, lease)
    [entry] = await scene.client.xpending_range(scene.keys.queue, "workers", "-", "+", 10)
    assert entry["time_since_delivered"] < 60_000
    assert entry["times_delivered"] == 1
    assert entry["consumer"] == b"c1"


async def test_renew_reclaims_the_message_from_another_consumer(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.xclaim(scene.keys.queue, "workers", "c2", 0, [lease.message_id])
    assert await renewed(scene, lease) is Answer.OK
    [entry] = await scene.client.xpending_range(scene.keys.queue, "workers", "-", "+", 10)
    assert entry["consumer"] == b"c1"


async def test_renew_does_not_restore_an_acked_message(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.xack(scene.keys.queue, "workers", lease.message_id)
    assert await renewed(scene, lease) is Answer.OK
    assert await scene.pending() == 0


# -- EMIT -------------------------------------------------------------------------------------


async def test_events_are_appended_in_order_with_four_fields(scene: Scene) -> None:
    lease = await scene.running()
    assert await scene.emit(lease, 1, [note("a"), note("b")]) is Answer.OK
    assert await scene.emit(lease, 3, [note("c")]) is Answer.OK
    events = (await scene.events(lease.job_id))[2:]
    assert [event[b"data"] for event in events] == [b'{"text":"%c"}' % c for c in b"abc"]
    assert all(list(event) == [b"type", b"ts", b"step", b"data"] for event in events)
    assert {event[b"step"] for event in events} == {b"worker.echo"}


async def test_a_repeat_skips_events_already_written(scene: Scene) -> None:
    lease = await scene.running()
    await scene.emit(lease, 1, [note("a"), note("b")])
    before = await scene.events(lease.job_id)
    assert await scene.emit(lease, 1, [note("a"), note("b")]) is Answer.OK
    assert await scene.events(lease.job_id) == before
    await scene.emit(lease, 1, [note("a"), note("b"), note("c")])
    await scene.finish(lease, first=1, events=[note("a"), note("b"), note("c"), note("d")])
    data = [event[b"data"] for event in await scene.events(lease.job_id)]
    assert data[2:6] == [b'{"text":"%c"}' % c for c in b"abcd"]
    assert len(data) == 7


async def test_an_old_repeat_does_not_reset_the_numbering(scene: Scene) -> None:
    lease = await scene.running()
    await scene.emit(lease, 1, [note("a"), note("b"), note("c")])
    await scene.emit(lease, 1, [note("a")])
    await scene.emit(lease, 2, [note("b"), note("c")])
    assert len(await scene.events(lease.job_id)) == 5


async def test_each_attempt_counts_its_own_events(scene: Scene) -> None:
    first = await scene.running()
    await scene.emit(first, 1, [note("a"), note("b")])
    second = await scene.take_over(first)
    await scene.emit(second, 1, [note("c")])
    data = [event[b"data"] for event in await scene.events(first.job_id)]
    assert data[-1] == b'{"text":"c"}'


async def test_events_are_capped_but_not_the_terminal_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common.jobs.scripts, "MAX_EVENTS_PER_JOB", 100)
    lease = await scene.running()
    for first in range(1, 1000, 250):
        await scene.emit(lease, first, [note(str(n)) for n in range(first, first + 250)])
    length = await scene.client.xlen(scene.keys.events(lease.job_id))
    assert 100 <= length < 300  # `~` leaves up to one node more
    await scene.finish(lease, DONE)
    assert (await scene.types(lease.job_id))[-1] == b"done"


async def test_data_is_stored_byte_by_byte(scene: Scene) -> None:
    lease = await scene.running()
    odd = note("x")._replace(data=b"\x00\xff\r\n'\"" + bytes(range(256)))
    await scene.emit(lease, 1, [odd])
    assert (await scene.events(lease.job_id))[-1][b"data"] == odd.data


async def test_attempts_of_many_jobs_in_one_call_are_separate(scene: Scene) -> None:
    leases = [await scene.running(f"t{n}") for n in range(8)]
    await scene.finish(leases[3], FAILED)
    answers = await asyncio.gather(*(scene.emit(lease, 1, [note(lease.token)]) for lease in leases))
    assert [answer is Answer.OK for answer in answers] == [n != 3 for n in range(8)]
    for lease in leases[:3] + leases[4:]:
        assert (await scene.events(lease.job_id))[-1][b"data"].decode() == (
            f'{{"text":"{lease.token}"}}'
        )
