"""Wait queues of over-limit tasks: TAKE_WAITING and TOUCH_WAITING."""

from __future__ import annotations

import pytest

from sluice.common.jobs.wait_queue import WaitQueues, wait_queue_name
from tests.support.store.jobs import StoreHarness


@pytest.fixture
def wait_queues(harness: StoreHarness) -> WaitQueues:
    wire, worker = harness.backend.wire(), harness.worker
    return WaitQueues(wire, harness.keys.queue, worker.group, harness.batcher)


async def test_the_oldest_messages_are_taken(
    harness: StoreHarness, wait_queues: WaitQueues
) -> None:
    await harness.group()
    jobs = await harness.post(5)
    ids = await harness.take(5)
    await wait_queues.put("chat", [ids[3], ids[0]])
    await wait_queues.put("plan", [ids[4], ids[1]])
    assert await wait_queues.count() == {"chat": 2, "plan": 2}
    assert await wait_queues.take(["chat", "plan", "code"], "c2", 0) == []
    taken = await wait_queues.take(["chat", "plan", "code"], "c2", 3)
    assert [each.id for each in taken] == [ids[0], ids[1], ids[3]]
    fields = dict(zip(taken[0].fields[::2], taken[0].fields[1::2]))
    assert fields[b"job_id"].decode() == jobs[0]
    assert fields[b"payload"] == b'{"text":"hello"}'
    assert await wait_queues.count() == {"plan": 1}
    assert [each.id for each in await wait_queues.take(["plan"], "c2", 9)] == [ids[4]]
    assert await wait_queues.count() == {}
    entries = await harness.client.xpending_range(harness.keys.queue, "workers", "-", "+", 9, "c2")
    assert [entry["message_id"].decode() for entry in entries] == [ids[0], ids[1], ids[3], ids[4]]
    # Their delivery count is 1, from the read: needed to detect jobs that expired before start.
    assert {entry["times_delivered"] for entry in entries} == {1}


async def test_waiting_messages_are_kept(harness: StoreHarness, wait_queues: WaitQueues) -> None:
    await harness.group()
    fields = {"job_id": "x", "task": "chat", "payload": "{}"}
    for _ in range(450):
        await harness.client.xadd(harness.keys.queue, fields)
    ids = await harness.take(450)
    await wait_queues.put("chat", ids)
    await harness.client.xclaim(
        harness.keys.queue, "workers", wait_queue_name("chat"), 0, ids, idle=60_000, justid=True
    )
    kept, after = [], ""
    while page := await wait_queues.touch("chat", after):
        kept += page
        after = page[-1]
    assert kept == ids
    assert await harness.autoclaim("c9", 30_000) == []
    assert await wait_queues.count() == {"chat": 450}


async def test_deleted_or_acked_messages_do_not_block_the_next(
    harness: StoreHarness, wait_queues: WaitQueues
) -> None:
    await harness.group()
    await harness.post(4)
    ids = await harness.take(4)
    await wait_queues.put("chat", ids)
    await harness.client.xdel(harness.keys.queue, ids[0])
    await harness.client.xack(harness.keys.queue, "workers", ids[1])
    taken = [each.id for each in await wait_queues.take(["chat"], "c2", 2)]
    taken += [each.id for each in await wait_queues.take(["chat"], "c2", 2)]
    assert taken == ids[2:]
    assert await harness.pending() == 2
    assert await wait_queues.count() == {}


@pytest.mark.parametrize("spoilt", ["no queue", "no group", "a string"])
async def test_without_a_queue_nothing_is_waiting(
    harness: StoreHarness, wait_queues: WaitQueues, spoilt: str
) -> None:
    if spoilt == "no group":
        await harness.post()
    elif spoilt == "a string":
        await harness.client.set(harness.keys.queue, "a string")
    assert await wait_queues.count() == {}
    assert await wait_queues.take(["chat"], "c1", 3) == []
    assert await wait_queues.touch("chat") == []
