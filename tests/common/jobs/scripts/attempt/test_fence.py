"""Every write of an attempt: only the current attempt may make it, and it refreshes the TTLs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Lease
from tests.support.store.jobs import FAILED, StoreHarness, note

UNSENT: dict[str, Any] = {"first": 1, "events": [note("late")]}
Write = Callable[[StoreHarness, Lease], Awaitable[Answer]]


async def renew(harness: StoreHarness, lease: Lease) -> Answer:
    return (await harness.renew(lease)).answer


async def emit(harness: StoreHarness, lease: Lease) -> Answer:
    return await harness.emit(lease, **UNSENT)


async def save(harness: StoreHarness, lease: Lease) -> Answer:
    return await harness.store.save(lease, harness.worker, "a", b"1", **UNSENT)


async def finish(harness: StoreHarness, lease: Lease) -> Answer:
    return await harness.finish(lease, FAILED, **UNSENT)


async def retry(harness: StoreHarness, lease: Lease) -> Answer:
    return await harness.retry(lease, **UNSENT)


async def release(harness: StoreHarness, lease: Lease) -> Answer:
    return await harness.release(lease, **UNSENT)


REPORTS, RETURNS = [renew, emit, save], [retry, release]
each = pytest.mark.parametrize("write", [*REPORTS, finish, *RETURNS])


@each
async def test_a_superseded_attempt_writes_nothing(harness: StoreHarness, write: Write) -> None:
    """Neither the right attempt with a wrong token nor the reverse is enough."""
    zombie = await harness.running()
    await harness.take_over(zombie)
    async with harness.unchanged():
        for late in (zombie, zombie._replace(attempt=2), zombie._replace(token="t2")):
            assert await write(harness, late) is Answer.LOST
            assert await harness.store.saved(late) is None
    # If the lease key is lost, attempts are counted from one again.
    await harness.client.delete(harness.keys.lease(zombie.job_id))
    heir = await harness.take_over(zombie, "t3")
    assert heir.attempt == zombie.attempt
    async with harness.unchanged():
        assert await write(harness, zombie) is Answer.LOST
    await harness.retry(heir)
    async with harness.unchanged():  # a repeated retry is a lost reply
        assert await write(harness, heir) is (Answer.OK if write in RETURNS else Answer.LOST)


@each
async def test_after_the_end_nothing_is_written(harness: StoreHarness, write: Write) -> None:
    """A third-party worker may have ended the job; FINISH then adds its event (test_finish.py)."""
    zombie, by_third_party = await harness.running("t1"), await harness.running("t2")
    ended = await harness.take_over(zombie, "t3")
    await harness.finish(ended)
    await harness.client.hset(harness.keys.job(by_third_party.job_id), "status", "canceled")
    async with harness.unchanged():
        for late in (ended, zombie):
            expected = Answer.ALREADY if write is finish else Answer.LOST
            assert await write(harness, late) is expected
        assert await harness.store.saved(ended) is None
        if write is not finish:
            assert await write(harness, by_third_party) is Answer.LOST


@each
@pytest.mark.parametrize("parts", [("job", "events"), ("job", "events", "lease")])
async def test_a_deleted_job_is_not_recreated(
    harness: StoreHarness, write: Write, parts: tuple[str, ...]
) -> None:
    lease = await harness.running()
    deleted = harness.names(lease.job_id, *parts)
    await harness.client.delete(*deleted)
    before = await harness.snapshot()
    for _ in range(2):
        assert await write(harness, lease) is Answer.GONE
    assert await harness.client.exists(*deleted) == 0
    if write in REPORTS:
        assert await harness.snapshot() == before
    else:  # there is nothing left to do for the message
        assert await harness.pending() == 0
    assert (await harness.store.counts()).ended == 0


@each
@pytest.mark.parametrize(("ttl_s", "used"), [("90", 90), ("0", 600)])
async def test_ttls_are_renewed(harness: StoreHarness, write: Write, ttl_s: str, used: int) -> None:
    """Also if the lease has expired, as long as no other attempt has taken it."""
    lease = await harness.running()
    await harness.client.hset(harness.keys.job(lease.job_id), "ttl_s", ttl_s)
    await harness.set_ttls(lease.job_id, 5)
    await harness.expire(lease)
    assert await write(harness, lease) is Answer.OK
    parts = ("job", "events") if write is finish else ("job", "events", "lease")
    await harness.check_ttls(lease.job_id, used, *parts)


@pytest.mark.parametrize("write", [emit, save, finish, *RETURNS])
async def test_a_hint_is_published(harness: StoreHarness, write: Write) -> None:
    lease = await harness.running()
    heard = await harness.listen(harness.keys.hints)
    await write(harness, lease)
    assert await asyncio.wait_for(heard.get(), 5) == lease.job_id.encode()
