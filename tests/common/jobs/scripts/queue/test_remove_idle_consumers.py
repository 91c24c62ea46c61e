"""REMOVE_IDLE_CONSUMERS: removes long idle consumers, but never one with pending messages."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.store.jobs import StoreHarness


async def consumers(harness: StoreHarness) -> set[bytes]:
    return {
        info["name"] for info in await harness.client.xinfo_consumers(harness.keys.queue, "workers")
    }


async def read_and_ack(harness: StoreHarness, consumer: str) -> None:
    await harness.post()
    await harness.client.xack(harness.keys.queue, "workers", *await harness.take(consumer=consumer))


async def remove_idle(harness: StoreHarness) -> int:
    await asyncio.sleep(0.03)  # so that a few milliseconds of idle time are exceeded
    return await harness.queue.remove_idle_consumers("workers", 5)


async def test_idle_consumers_without_messages_are_removed(harness: StoreHarness) -> None:
    await harness.group()
    await harness.client.xgroup_create(harness.keys.queue, "auditors", id="0")
    await harness.client.xgroup_createconsumer(harness.keys.queue, "auditors", "x")
    for name in ("a", "b", "c"):
        await read_and_ack(harness, name)
    assert await harness.queue.remove_idle_consumers("workers", 60_000) == 0  # active recently
    assert await consumers(harness) == {b"a", b"b", b"c"}
    assert await remove_idle(harness) == 3
    assert await consumers(harness) == set()
    assert await remove_idle(harness) == 0
    assert len(await harness.client.xinfo_consumers(harness.keys.queue, "auditors")) == 1
    # A removed consumer may come back.
    await harness.post()
    [message_id] = await harness.take(consumer="a")
    assert (await harness.pending_entry())["message_id"] == message_id.encode()


async def test_a_consumer_with_a_message_is_never_removed(harness: StoreHarness) -> None:
    await harness.group()
    await read_and_ack(harness, "idle")
    await harness.post()
    [message_id] = await harness.take(consumer="holder")
    await harness.claim_for("holder", message_id, 3_600_000)
    for _ in range(2):
        await remove_idle(harness)
        assert await consumers(harness) == {b"holder"}
    entry = await harness.pending_entry()
    assert (entry["message_id"], entry["consumer"]) == (message_id.encode(), b"holder")
    await harness.client.xack(harness.keys.queue, "workers", message_id)
    assert await remove_idle(harness) == 1


@pytest.mark.parametrize("queue", ["missing", "without group", "string"])
async def test_without_a_group_nothing_is_removed(harness: StoreHarness, queue: str) -> None:
    if queue == "string":
        await harness.client.set(harness.keys.queue, "a string")
    elif queue == "without group":
        await harness.post()
    async with harness.unchanged():
        assert await harness.queue.remove_idle_consumers("workers", 0) == 0
