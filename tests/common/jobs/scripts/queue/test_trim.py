"""TRIM: removes acknowledged entries, also between pending ones, and nothing else."""

from __future__ import annotations

import random

import pytest

import common.jobs.queue
from common.errors import QueueFull
from tests.common.kit import Scene, new_job
from tests.support.backends import WITH_LAG


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.jobs.queue, "TRIM_PAGE", 16)
    monkeypatch.setattr(common.jobs.queue, "TRIM_TOLERANCE", 8)


async def entries(scene: Scene) -> list[str]:
    return [entry_id.decode() for entry_id, _ in await scene.client.xrange(scene.keys.queue)]


async def fill(scene: Scene, count: int) -> list[str]:
    pipe = scene.client.pipeline(transaction=False)
    for _ in range(count):
        pipe.xadd(scene.keys.queue, {"job_id": "x" * 40})
    return [entry_id.decode() for entry_id in await pipe.execute()]


async def read(scene: Scene, group: str, count: int) -> list[str]:
    reply = await scene.client.xreadgroup(group, "c", {scene.keys.queue: ">"}, count=count)
    return [entry_id.decode() for entry_id, _ in reply[0][1]] if reply else []


async def backlog_is(scene: Scene, backlog: int, group: str = "workers") -> None:
    """ENQUEUE counts exactly this backlog."""
    if backlog:
        for limit in (backlog, max(1, backlog // 2), 1):
            with pytest.raises(QueueFull) as caught:
                await scene.store.enqueue(new_job(), group, limit)
            assert caught.value.backlog == backlog
    job = new_job()
    await scene.store.enqueue(job, group, backlog + 1)


async def lag_is_known(scene: Scene) -> None:
    if scene.backend.name in WITH_LAG:
        for group in await scene.client.xinfo_groups(scene.keys.queue):
            assert group["lag"] is not None, group


async def test_acked_entries_behind_an_old_pending_one_are_removed(scene: Scene) -> None:
    await scene.group()
    everything = await fill(scene, 100)
    taken = await scene.take(90)
    held = {taken[0], taken[40], taken[41], taken[88]}
    acked = [entry for entry in taken if entry not in held]
    await scene.client.xack(scene.keys.queue, "workers", *acked)
    removed = await scene.queue.trim()
    left = await entries(scene)
    assert removed == 100 - len(left)
    # The last delivered one stays, so that Redis knows the lag.
    kept = held | {taken[-1]} | set(everything[90:])
    assert left == [entry for entry in everything if entry in kept]
    assert await scene.queue.trim() == 0
    await lag_is_known(scene)
    assert await scene.take(100) == everything[90:]
    await lag_is_known(scene)


async def test_a_few_acked_entries_are_tolerated(scene: Scene) -> None:
    await scene.group()
    await fill(scene, 30)
    taken = await scene.take(20)
    await scene.client.xack(scene.keys.queue, "workers", *taken[1:9])
    if scene.backend.name in WITH_LAG:  # otherwise undelivered entries look like acked ones
        assert await scene.queue.trim() == 0
    assert set(await entries(scene)) >= {taken[0], *taken[9:]}
    await scene.client.xack(scene.keys.queue, "workers", *taken[9:15])
    await scene.queue.trim()
    left = await entries(scene)
    assert left[0] == taken[0]
    assert len(left) == 1 + 5 + 10


async def test_pending_entries_stay(scene: Scene) -> None:
    await scene.group()
    everything = await fill(scene, 60)
    await scene.take(60)
    assert await scene.queue.trim() == 0
    assert await entries(scene) == everything


async def test_a_job_waiting_for_its_next_attempt_keeps_its_entry(scene: Scene) -> None:
    waiting = await scene.running("w")
    await scene.retry(waiting, 3_600_000)
    for number in range(20):
        await scene.finish(await scene.running(f"t{number}"))
    await scene.queue.trim()
    left = await entries(scene)
    assert left[0] == waiting.message_id
    assert len(left) == 2
    await scene.client.hset(scene.keys.lease(waiting.job_id), "not_before_ms", "1")
    assert await scene.autoclaim("c2", 0) == [waiting.message_id]
    await scene.finish(await scene.again(waiting, "w2"))
    assert await scene.pending() == 0


async def test_several_groups(scene: Scene) -> None:
    """An entry is removed when all groups have acknowledged it."""
    await scene.group()
    await scene.client.xgroup_create(scene.keys.queue, "auditors", id="0")
    everything = await fill(scene, 80)
    await read(scene, "workers", 80)
    await read(scene, "auditors", 60)
    held_here, held_there = {everything[5], everything[70]}, {everything[0], everything[30]}
    for group, held, count in (("workers", held_here, 80), ("auditors", held_there, 60)):
        acked = [entry for entry in everything[:count] if entry not in held]
        await scene.client.xack(scene.keys.queue, group, *acked)
    await scene.queue.trim()
    left = set(await entries(scene))
    assert left == held_here | held_there | set(everything[59:])
    await lag_is_known(scene)
    assert await read(scene, "auditors", 100) == everything[60:]


async def test_a_group_that_has_read_nothing_keeps_everything(scene: Scene) -> None:
    await scene.group()
    await scene.client.xgroup_create(scene.keys.queue, "auditors", id="0")
    everything = await fill(scene, 40)
    taken = await scene.take(40)
    await scene.client.xack(scene.keys.queue, "workers", *taken[1:])
    assert await scene.queue.trim() == 0
    assert await entries(scene) == everything


@pytest.mark.parametrize("seed", range(4))
async def test_lag_and_backlog_stay_correct_after_trimming(scene: Scene, seed: int) -> None:
    rng = random.Random(seed)
    await scene.group()
    pending: list[str] = []
    unread: list[str] = []
    for _ in range(6):
        unread += await fill(scene, rng.randrange(30))
        for entry in await scene.take(rng.randrange(1, 25)):
            assert entry == unread.pop(0)
            pending.append(entry)
        rng.shuffle(pending)
        acked, pending = pending[2:], pending[:2]
        if acked:
            await scene.client.xack(scene.keys.queue, "workers", *acked)
        await scene.queue.trim()
        await lag_is_known(scene)
        left = await entries(scene)
        assert left[len(left) - len(unread) :] == unread
        assert set(left) >= set(pending)
        assert len(left) - len(unread) - len(pending) <= 9
        await backlog_is(scene, len(pending) + len(unread))
        unread.append((await entries(scene))[-1])
    assert await scene.take(1000) == unread


async def test_all_pages_are_processed(scene: Scene) -> None:
    await scene.group()
    await fill(scene, 200)
    taken = await scene.take(200)
    held = taken[:100:2]  # a pending one between any two, for several pages
    await scene.client.xack(scene.keys.queue, "workers", *taken[1:100:2], *taken[100:])
    await scene.queue.trim()
    assert await entries(scene) == [*held, taken[-1]]


async def test_the_number_of_pages_is_limited(scene: Scene) -> None:
    await scene.group()
    await fill(scene, 100)
    taken = await scene.take(100)
    await scene.client.xack(scene.keys.queue, "workers", *taken[1:])
    assert await scene.queue.trim(pages=1) == 15
    assert await scene.queue.trim(pages=2) == 31


async def test_pending_ids_of_deleted_entries_do_not_hide_others(scene: Scene) -> None:
    """Deleted entries stay pending, and there may be more of them than fit on a page. The entries
    behind them are pending nevertheless."""
    await scene.group()
    await fill(scene, 200)
    taken = await scene.take(200)
    await scene.client.xdel(scene.keys.queue, *taken[1:50])
    await scene.client.xack(scene.keys.queue, "workers", *taken[80:])
    await scene.queue.trim()
    assert set(await entries(scene)) >= {taken[0], *taken[50:80]}


async def test_a_repeat_changes_nothing(scene: Scene) -> None:
    await scene.group()
    await fill(scene, 60)
    taken = await scene.take(50)
    await scene.client.xack(scene.keys.queue, "workers", *taken[1:])
    await scene.queue.trim()
    before = await scene.snapshot()
    assert await scene.queue.trim() == 0
    assert await scene.snapshot() == before


async def test_a_recreated_group_reads_only_what_is_left(scene: Scene) -> None:
    await scene.group()
    await fill(scene, 60)
    taken = await scene.take(50)
    await scene.client.xack(scene.keys.queue, "workers", *taken[1:])
    await scene.queue.trim()
    left = await entries(scene)
    await scene.client.xgroup_destroy(scene.keys.queue, "workers")
    assert await scene.queue.trim() == 0  # without a group everything is kept
    await scene.client.xgroup_create(scene.keys.queue, "workers", id="0")
    assert await scene.queue.trim() == 0
    await backlog_is(scene, len(left))
    assert (await scene.take(100))[:-1] == left
