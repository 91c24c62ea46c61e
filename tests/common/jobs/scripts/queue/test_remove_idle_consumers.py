"""REMOVE_IDLE_CONSUMERS: removes long idle consumers, but never one with pending messages."""

from __future__ import annotations

import asyncio

import pytest

from tests.common.kit import Scene


async def consumers(scene: Scene) -> set[bytes]:
    return {
        info["name"] for info in await scene.client.xinfo_consumers(scene.keys.queue, "workers")
    }


async def read_and_ack(scene: Scene, consumer: str) -> None:
    await scene.post()
    await scene.client.xack(scene.keys.queue, "workers", *await scene.take(consumer=consumer))


async def seen_long_ago(scene: Scene) -> None:
    """Wait until a few milliseconds of idle time are exceeded."""
    await asyncio.sleep(0.03)


async def test_an_idle_consumer_without_messages_is_removed(scene: Scene) -> None:
    await scene.group()
    for name in ("a", "b", "c"):
        await read_and_ack(scene, name)
    await seen_long_ago(scene)
    assert await scene.queue.remove_idle_consumers("workers", 5) == 3
    assert await consumers(scene) == set()
    assert await scene.queue.remove_idle_consumers("workers", 5) == 0


async def test_a_consumer_with_a_message_is_never_removed(scene: Scene) -> None:
    await scene.group()
    await read_and_ack(scene, "idle")
    await scene.post()
    [message_id] = await scene.take(consumer="holder")
    await scene.claim_for("holder", message_id, 3_600_000)
    await seen_long_ago(scene)
    for _ in range(2):
        await scene.queue.remove_idle_consumers("workers", 5)
        assert await consumers(scene) == {b"holder"}
    entry = await scene.pending_entry()
    assert (entry["message_id"], entry["consumer"]) == (message_id.encode(), b"holder")
    await scene.client.xack(scene.keys.queue, "workers", message_id)
    await seen_long_ago(scene)
    assert await scene.queue.remove_idle_consumers("workers", 5) == 1


async def test_a_retrying_and_a_released_job_keep_their_consumer(scene: Scene) -> None:
    retried, released = await scene.running("t1"), await scene.running("t2")
    await scene.retry(retried, 60_000)
    await scene.release(released)
    await seen_long_ago(scene)
    assert await scene.queue.remove_idle_consumers("workers", 5) == 0
    assert await scene.pending() == 2


async def test_a_recently_active_consumer_stays(scene: Scene) -> None:
    await scene.group()
    await read_and_ack(scene, "a")
    assert await scene.queue.remove_idle_consumers("workers", 60_000) == 0
    assert await consumers(scene) == {b"a"}


async def test_a_removed_consumer_may_come_back(scene: Scene) -> None:
    await scene.group()
    await read_and_ack(scene, "a")
    await seen_long_ago(scene)
    await scene.queue.remove_idle_consumers("workers", 5)
    await scene.post()
    [message_id] = await scene.take(consumer="a")
    assert (await scene.pending_entry())["message_id"] == message_id.encode()


async def test_other_groups_are_not_touched(scene: Scene) -> None:
    await scene.group()
    await scene.client.xgroup_create(scene.keys.queue, "auditors", id="0")
    await read_and_ack(scene, "a")
    await scene.client.xgroup_createconsumer(scene.keys.queue, "auditors", "x")
    await seen_long_ago(scene)
    assert await scene.queue.remove_idle_consumers("workers", 5) == 1
    assert len(await scene.client.xinfo_consumers(scene.keys.queue, "auditors")) == 1


@pytest.mark.parametrize("queue", ["missing", "without group", "string"])
async def test_without_a_group_there_is_nothing_to_remove(scene: Scene, queue: str) -> None:
    if queue == "string":
        await scene.client.set(scene.keys.queue, "a string")
    elif queue == "without group":
        await scene.post()
    before = await scene.snapshot()
    assert await scene.queue.remove_idle_consumers("workers", 0) == 0
    assert await scene.snapshot() == before
