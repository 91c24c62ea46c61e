"""RENEW and EMIT: an attempt keeps its lease and message, and publishes events once."""

from __future__ import annotations

import asyncio

import pytest

import common.jobs.scripts
from common.contracts.queue import Answer
from common.jobs.store import Lease
from tests.support.store.jobs import DONE, FAILED, StoreHarness, note


async def renewed(harness: StoreHarness, lease: Lease) -> Answer:
    return (await harness.renew(lease)).answer


async def test_renew_extends_the_lease(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.expire(lease)
    await renewed(harness, lease)
    deadline = int((await harness.held(lease.job_id))[b"deadline_ms"])
    assert 0 <= await harness.now_ms() + harness.worker.lease_ms - deadline < 5000
    assert (await harness.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.BUSY
    assert await harness.types(lease.job_id) == [b"queued", b"running"]


async def test_renew_keeps_its_message_but_not_an_acked_one(harness: StoreHarness) -> None:
    lease = await harness.running()
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
    monkeypatch.setattr(common.jobs.scripts, "MAX_EVENTS_PER_JOB", 100)
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
