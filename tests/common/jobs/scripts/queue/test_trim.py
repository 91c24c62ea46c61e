"""TRIM: removes acknowledged entries, also between pending ones, and nothing else."""

from __future__ import annotations

import random

import pytest

import sluice.common.jobs.queue
from sluice.common.errors import CorruptKey, QueueFull
from tests.support.servers import WITH_LAG
from tests.support.store.jobs import StoreHarness, new_job


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.common.jobs.queue, "TRIM_PAGE", 16)
    monkeypatch.setattr(sluice.common.jobs.queue, "TRIM_TOLERANCE", 8)


async def entries(harness: StoreHarness) -> list[str]:
    return [entry_id.decode() for entry_id, _ in await harness.client.xrange(harness.keys.queue)]


async def fill(harness: StoreHarness, count: int, acked: slice, taken: int) -> list[str]:
    """Entries of which so many were read, and these acknowledged; returns all ids."""
    await harness.group()
    await add(harness, count)
    ids = await harness.take(taken)
    await harness.client.xack(harness.keys.queue, "workers", *ids[acked])
    return await entries(harness)


async def add(harness: StoreHarness, count: int) -> list[str]:
    pipe = harness.client.pipeline(transaction=False)
    for _ in range(count):
        pipe.xadd(harness.keys.queue, {"job_id": "x" * 40})
    return [entry_id.decode() for entry_id in await pipe.execute()]


async def read(harness: StoreHarness, group: str, count: int) -> list[str]:
    reply = await harness.client.xreadgroup(group, "c", {harness.keys.queue: ">"}, count=count)
    return [entry_id.decode() for entry_id, _ in reply[0][1]] if reply else []


async def backlog_is(harness: StoreHarness, backlog: int, group: str = "workers") -> None:
    """ENQUEUE counts exactly this backlog."""
    if backlog:
        for limit in (backlog, max(1, backlog // 2), 1):
            with pytest.raises(QueueFull) as caught:
                await harness.store.enqueue(new_job(), group, limit)
            assert caught.value.backlog == backlog
    job = new_job()
    await harness.store.enqueue(job, group, backlog + 1)


async def lag_is_known(harness: StoreHarness) -> None:
    if harness.backend.name in WITH_LAG:
        for group in await harness.client.xinfo_groups(harness.keys.queue):
            assert group["lag"] is not None, group


async def test_without_a_queue_or_group_nothing_is_removed(harness: StoreHarness) -> None:
    assert await harness.queue.trim() == 0
    assert await harness.snapshot() == {}
    await harness.post(3)
    assert await harness.queue.trim() == 0
    assert await harness.client.xlen(harness.keys.queue) == 3
    await harness.client.delete(harness.keys.queue)
    await harness.client.set(harness.keys.queue, "not a stream")
    with pytest.raises(CorruptKey, match="WRONGTYPE"):
        await harness.queue.trim()
    assert await harness.client.get(harness.keys.queue) == b"not a stream"


async def test_undelivered_and_pending_entries_are_never_removed(harness: StoreHarness) -> None:
    await harness.group()
    everything = await add(harness, 300)
    assert await harness.queue.trim() == 0
    taken = await harness.take(120)
    assert await harness.queue.trim() == 0  # nor are pending ones
    assert await entries(harness) == everything
    await harness.client.xack(harness.keys.queue, "workers", *taken)
    assert await harness.queue.trim() > 0
    assert (await entries(harness))[-180:] == everything[-180:]
    assert await harness.take(1000) == everything[-180:]
    await harness.client.delete(harness.keys.queue)
    everything = await fill(harness, 300, slice(150), 300)
    await harness.client.xack(harness.keys.queue, "workers", *everything[151:])
    assert await harness.queue.trim() > 0
    assert set(await entries(harness)) == {everything[150], everything[-1]}
    assert await harness.queue.trim() == 0


async def test_ids_are_compared_as_numbers(harness: StoreHarness) -> None:
    """Compared as text, ids with fewer digits would sort after longer ones."""
    for ms in (9, 10, 99, 100, 1000):
        await harness.client.xadd(harness.keys.queue, {"a": "b"}, id=f"{ms}-1")
    for group, last in (("workers", "1000-1"), ("auditors", "99-1")):
        await harness.client.xgroup_create(harness.keys.queue, group, id=last)
    await harness.queue.trim()
    assert {"99-1", "100-1", "1000-1"} <= set(await entries(harness))


@pytest.mark.usefixtures("small_pages")
class TestSmallPages:
    """Entries are searched in pages of 16; up to 8 acknowledged ones are tolerated."""

    async def test_acked_entries_behind_an_old_pending_one(self, harness: StoreHarness) -> None:
        await harness.group()
        everything = await add(harness, 100)
        taken = await harness.take(90)
        held = {taken[0], taken[40], taken[41], taken[88]}
        acked = [entry for entry in taken if entry not in held]
        await harness.client.xack(harness.keys.queue, "workers", *acked)
        removed = await harness.queue.trim()
        left = await entries(harness)
        assert removed == 100 - len(left)
        # The last delivered one stays, so that Redis knows the lag.
        kept = held | {taken[-1]} | set(everything[90:])
        assert left == [entry for entry in everything if entry in kept]
        async with harness.unchanged():
            assert await harness.queue.trim() == 0
        await lag_is_known(harness)
        assert await harness.take(100) == everything[90:]
        await lag_is_known(harness)

    async def test_a_few_acked_entries_are_tolerated(self, harness: StoreHarness) -> None:
        taken = (await fill(harness, 30, slice(1, 9), 20))[:20]
        if harness.backend.name in WITH_LAG:  # otherwise undelivered entries look like acked ones
            assert await harness.queue.trim() == 0
        assert set(await entries(harness)) >= {taken[0], *taken[9:]}
        await harness.client.xack(harness.keys.queue, "workers", *taken[9:15])
        await harness.queue.trim()
        left = await entries(harness)
        assert left[0] == taken[0]
        assert len(left) == 1 + 5 + 10

    async def test_an_entry_is_removed_when_all_groups_acked(self, harness: StoreHarness) -> None:
        await harness.group()
        await harness.client.xgroup_create(harness.keys.queue, "auditors", id="0")
        everything = await add(harness, 80)
        await read(harness, "workers", 80)
        held_here, held_there = {everything[5], everything[70]}, {everything[0], everything[30]}
        acked = [entry for entry in everything if entry not in held_here]
        await harness.client.xack(harness.keys.queue, "workers", *acked)
        assert await harness.queue.trim() == 0  # the other group has read nothing
        await read(harness, "auditors", 60)
        acked = [entry for entry in everything[:60] if entry not in held_there]
        await harness.client.xack(harness.keys.queue, "auditors", *acked)
        await harness.queue.trim()
        assert set(await entries(harness)) == held_here | held_there | set(everything[59:])
        await lag_is_known(harness)
        assert await read(harness, "auditors", 100) == everything[60:]

    @pytest.mark.parametrize("seed", range(4))
    async def test_lag_and_backlog_stay_correct(self, harness: StoreHarness, seed: int) -> None:
        rng = random.Random(seed)
        await harness.group()
        pending: list[str] = []
        unread: list[str] = []
        for _ in range(6):
            unread += await add(harness, rng.randrange(30))
            for entry in await harness.take(rng.randrange(1, 25)):
                assert entry == unread.pop(0)
                pending.append(entry)
            rng.shuffle(pending)
            acked, pending = pending[2:], pending[:2]
            if acked:
                await harness.client.xack(harness.keys.queue, "workers", *acked)
            await harness.queue.trim()
            await lag_is_known(harness)
            left = await entries(harness)
            assert left[len(left) - len(unread) :] == unread
            assert set(left) >= set(pending)
            assert len(left) - len(unread) - len(pending) <= 9
            await backlog_is(harness, len(pending) + len(unread))
            unread.append((await entries(harness))[-1])
        assert await harness.take(1000) == unread

    async def test_all_pages_are_processed(self, harness: StoreHarness) -> None:
        taken = await fill(harness, 200, slice(1, 100, 2), 200)
        await harness.client.xack(harness.keys.queue, "workers", *taken[100:])
        await harness.queue.trim()
        # A pending one between any two, for several pages.
        assert await entries(harness) == [*taken[:100:2], taken[-1]]

    async def test_the_number_of_pages_is_limited(self, harness: StoreHarness) -> None:
        await fill(harness, 100, slice(1, None), 100)
        assert await harness.queue.trim(pages=1) == 15
        assert await harness.queue.trim(pages=2) == 31

    async def test_deleted_pending_entries_do_not_hide_others(self, harness: StoreHarness) -> None:
        """Deleted entries stay pending, and there may be more of them than fit on a page. The
        entries behind them are pending nevertheless."""
        taken = await fill(harness, 200, slice(80, None), 200)
        await harness.client.xdel(harness.keys.queue, *taken[1:50])
        await harness.queue.trim()
        assert set(await entries(harness)) >= {taken[0], *taken[50:80]}

    async def test_a_recreated_group_reads_only_what_is_left(self, harness: StoreHarness) -> None:
        await fill(harness, 60, slice(1, None), 50)
        await harness.queue.trim()
        left = await entries(harness)
        await harness.client.xgroup_destroy(harness.keys.queue, "workers")
        assert await harness.queue.trim() == 0  # without a group everything is kept
        await harness.client.xgroup_create(harness.keys.queue, "workers", id="0")
        assert await harness.queue.trim() == 0
        await backlog_is(harness, len(left))
        assert (await harness.take(100))[:-1] == left
