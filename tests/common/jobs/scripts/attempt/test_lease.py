"""RENEW, EMIT, SAVE_CHECKPOINT: an attempt keeps lease and message, and writes events once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sluice.common.jobs.scripts
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Lease
from tests.support.store.jobs import DONE, FAILED, StoreHarness, note


async def renewed(harness: StoreHarness, lease: Lease) -> Answer:
    return (await harness.renew(lease)).answer


async def test_renew_extends_the_lease_and_keeps_the_message(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.expire(lease)
    await renewed(harness, lease)
    deadline = int((await harness.held(lease.job_id))[b"deadline_ms"])
    assert 0 <= await harness.now_ms() + harness.worker.lease_ms - deadline < 5000
    assert (await harness.begin_next(lease, "t2")).answer is Answer.BUSY
    assert await harness.types(lease.job_id) == [b"queued", b"running"]
    # It keeps its message, but not an acknowledged one.
    await harness.claim_for("c1", lease.message_id, 3_600_000)
    await renewed(harness, lease)
    entry = await harness.pending_entry()
    assert entry["time_since_delivered"] < 60_000
    assert (entry["times_delivered"], entry["consumer"]) == (1, b"c1")
    await harness.claim_for("c2", lease.message_id)
    assert await renewed(harness, lease) is Answer.OK
    assert (await harness.pending_entry())["consumer"] == b"c1"
    await harness.client.xack(harness.keys.queue, "workers", lease.message_id)
    assert await renewed(harness, lease) is Answer.OK
    assert await harness.pending() == 0


async def test_events_are_appended_in_order_with_four_fields(harness: StoreHarness) -> None:
    lease = await harness.running()
    assert await harness.emit(lease, 1, [note("a"), note("b")]) is Answer.OK
    odd = note("x")._replace(data=b"\x00\xff\r\n'\"" + bytes(range(256)))
    assert await harness.emit(lease, 3, [odd]) is Answer.OK
    events = (await harness.events(lease.job_id))[2:]
    assert [event[b"data"] for event in events] == [b'{"text":"a"}', b'{"text":"b"}', odd.data]
    assert all(list(event) == [b"type", b"ts", b"step", b"data"] for event in events)
    assert {event[b"step"] for event in events} == {b"worker.echo"}


async def test_a_repeat_skips_events_of_its_attempt_already_written(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.emit(lease, 1, [note("a"), note("b")])
    async with harness.unchanged():
        assert await harness.emit(lease, 1, [note("a"), note("b")]) is Answer.OK
    await harness.emit(lease, 1, [note("a"), note("b"), note("c")])
    await harness.emit(lease, 1, [note("a")])  # an old repeat does not reset the numbering
    await harness.emit(lease, 2, [note("b"), note("c")])
    assert len(await harness.events(lease.job_id)) == 5
    await harness.finish(lease, first=1, events=[note("a"), note("b"), note("c"), note("d")])
    data = await harness.data(lease.job_id)
    assert data[2:6] == [b'{"text":"%c"}' % c for c in b"abcd"]
    assert len(data) == 7
    first = await harness.running("u1")
    await harness.emit(first, 1, [note("a"), note("b")])
    second = await harness.take_over(first, "u2")
    await harness.emit(second, 1, [note("c")])
    assert (await harness.data(first.job_id))[-1] == b'{"text":"c"}'


async def test_events_are_capped_but_not_the_terminal_one(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.common.jobs.scripts, "MAX_EVENTS_PER_JOB", 100)
    lease = await harness.running()
    for first in range(1, 1000, 250):
        await harness.emit(lease, first, [note(str(n)) for n in range(first, first + 250)])
    length = await harness.client.xlen(harness.keys.events(lease.job_id))
    assert 100 <= length < 300  # `~` leaves up to one node more
    await harness.finish(lease, DONE)
    assert (await harness.types(lease.job_id))[-1] == b"done"


async def test_attempts_of_many_jobs_in_one_call_are_separate(harness: StoreHarness) -> None:
    leases = [await harness.running(f"t{n}") for n in range(8)]
    await harness.finish(leases[3], FAILED)
    answers = await asyncio.gather(
        *(harness.emit(lease, 1, [note(lease.token)]) for lease in leases)
    )
    assert [answer is Answer.OK for answer in answers] == [n != 3 for n in range(8)]
    for lease in leases[:3] + leases[4:]:
        assert (await harness.data(lease.job_id))[-1] == b'{"text":"%s"}' % lease.token.encode()


# -- SAVE_CHECKPOINT: stored for later attempts, after its events ---------------------------------


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
async def test_the_next_attempt_gets_checkpoints(harness: StoreHarness, handed_back: str) -> None:
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
