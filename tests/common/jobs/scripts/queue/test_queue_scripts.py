"""DEAD_LETTER and TRIM: what leaves the queue, and what must not."""

from __future__ import annotations

import orjson
import pytest

import common.jobs.scripts
from common.contracts.jobs import DeadReason
from common.contracts.queue import Answer
from common.errors import CorruptKey
from tests.common.kit import Scene


async def test_a_dead_letter_is_copied_once_then_acked(scene: Scene) -> None:
    await scene.group()
    await scene.client.xadd(scene.keys.queue, {b"job_id": b"", b"junk": b"\xff\x00"})
    [message_id] = await scene.take()
    fields = {b"job_id": b"", b"junk": b"\xff\x00"}
    args = (message_id, DeadReason.NO_JOB_ID, fields, "workers")
    assert await scene.store.dead_letter(*args) is Answer.OK
    assert await scene.store.dead_letter(*args) is Answer.ALREADY
    [(_, letter)] = await scene.client.xrange(scene.keys.dead_letters)
    assert letter.pop(b"ts").isdigit()
    assert orjson.loads(letter.pop(b"fields")) == {"job_id": "", "junk": "\ufffd\x00"}
    assert letter == {
        b"reason": b"message_without_job_id",
        b"message_id": message_id.encode(),
        b"job_id": b"",
        b"attempts": b"0",
        b"first_error": b"",
        b"last_error": b"",
    }
    assert await scene.pending() == 0


async def test_a_message_that_is_not_pending_writes_no_dead_letter(scene: Scene) -> None:
    await scene.group()
    await scene.post()
    [(message_id, fields)] = await scene.client.xrange(scene.keys.queue)
    before = await scene.snapshot()
    answer = await scene.store.dead_letter(
        message_id.decode(), DeadReason.NO_JOB, fields, "workers"
    )
    assert answer is Answer.ALREADY
    assert await scene.snapshot() == before


async def test_dead_letters_are_capped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.jobs.scripts, "MAX_DEAD_LETTERS", 10)
    await scene.group()
    for _ in range(250):
        await scene.client.xadd(scene.keys.queue, {"x": "y" * 50})
    for message_id in await scene.take(250):
        await scene.store.dead_letter(
            message_id, DeadReason.NO_JOB_ID, {b"x": b"y" * 50}, "workers"
        )
    assert 10 <= await scene.client.xlen(scene.keys.dead_letters) < 120


async def test_trim_without_a_queue_or_group_does_nothing(scene: Scene) -> None:
    assert await scene.queue.trim() == 0
    assert await scene.snapshot() == {}
    await scene.post(3)
    assert await scene.queue.trim() == 0
    assert await scene.client.xlen(scene.keys.queue) == 3


async def entries(scene: Scene) -> list[str]:
    return [entry_id.decode() for entry_id, _ in await scene.client.xrange(scene.keys.queue)]


async def fill(scene: Scene, count: int) -> list[str]:
    for _ in range(count):
        await scene.client.xadd(scene.keys.queue, {"job_id": "x" * 40})
    return await entries(scene)


async def test_trim_never_removes_undelivered_entries(scene: Scene) -> None:
    await scene.group()
    everything = await fill(scene, 300)
    assert await scene.queue.trim() == 0
    taken = await scene.take(120)
    await scene.client.xack(scene.keys.queue, "workers", *taken)
    assert await scene.queue.trim() > 0
    left = await entries(scene)
    assert left[-180:] == everything[-180:]
    assert await scene.take(1000) == everything[-180:]


async def test_trim_never_removes_pending_entries(scene: Scene) -> None:
    await scene.group()
    everything = await fill(scene, 300)
    taken = await scene.take(300)
    await scene.client.xack(scene.keys.queue, "workers", *taken[:150], *taken[151:])
    assert await scene.queue.trim() > 0
    left = await entries(scene)
    assert set(left) == {everything[150], everything[-1]}
    assert await scene.queue.trim() == 0


async def test_trim_waits_for_the_slowest_group(scene: Scene) -> None:
    await scene.group()
    await scene.client.xgroup_create(scene.keys.queue, "auditors", id="0")
    everything = await fill(scene, 250)
    taken = await scene.take(250)
    await scene.client.xack(scene.keys.queue, "workers", *taken)
    assert await scene.queue.trim() == 0
    await scene.client.xreadgroup("auditors", "a", {scene.keys.queue: ">"}, count=130)
    assert await scene.queue.trim() == 0  # all of them are pending there
    await scene.client.xack(scene.keys.queue, "auditors", *everything[:130])
    await scene.queue.trim()
    assert set(await entries(scene)) >= set(everything[130:])


async def test_trim_compares_ids_as_numbers(scene: Scene) -> None:
    """Compared as text, ids with fewer digits would sort after longer ones."""
    for ms in (9, 10, 99, 100, 1000):
        await scene.client.xadd(scene.keys.queue, {"a": "b"}, id=f"{ms}-1")
    for group, last in (("workers", "1000-1"), ("auditors", "99-1")):
        await scene.client.xgroup_create(scene.keys.queue, group, id=last)
    await scene.queue.trim()
    assert {"99-1", "100-1", "1000-1"} <= set(await entries(scene))


async def test_trim_of_a_wrong_type_is_a_clear_error(scene: Scene) -> None:
    await scene.client.set(scene.keys.queue, "not a stream")
    with pytest.raises(CorruptKey, match="WRONGTYPE"):
        await scene.queue.trim()
    assert await scene.client.get(scene.keys.queue) == b"not a stream"
