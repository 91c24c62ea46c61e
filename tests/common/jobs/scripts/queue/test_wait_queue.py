"""Wait queues of over-limit tasks: TAKE_WAITING and TOUCH_WAITING."""

from __future__ import annotations

import pytest

from common.contracts.queue import Answer
from common.jobs.wait_queue import WaitQueues, wait_queue_name
from tests.common.kit import Scene


def rooms_of(scene: Scene) -> WaitQueues:
    return WaitQueues(scene.backend.wire(), scene.keys.queue, scene.worker.group, scene.batcher)


async def test_messages_are_taken_oldest_first(scene: Scene) -> None:
    wait_queues = rooms_of(scene)
    await scene.group()
    jobs = await scene.post(5)
    ids = await scene.take(5)
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
    entries = await scene.client.xpending_range(scene.keys.queue, "workers", "-", "+", 9, "c2")
    assert [entry["message_id"].decode() for entry in entries] == [ids[0], ids[1], ids[3], ids[4]]
    # Their delivery count is 1, from the read: needed to detect jobs that expired before start.
    assert {entry["times_delivered"] for entry in entries} == {1}


async def test_of_two_workers_one_gets_a_message(scene: Scene) -> None:
    wait_queues = rooms_of(scene)
    await scene.group()
    await scene.post(3)
    ids = await scene.take(3)
    await wait_queues.put("chat", ids)
    first, second = (
        await wait_queues.take(["chat"], "c2", 2),
        await wait_queues.take(["chat"], "c3", 2),
    )
    assert [each.id for each in first] == ids[:2]
    assert [each.id for each in second] == ids[2:]


async def test_waiting_messages_do_not_look_abandoned(scene: Scene) -> None:
    wait_queues = rooms_of(scene)
    await scene.group()
    await scene.post(450)
    ids = await scene.take(450)
    await wait_queues.put("chat", ids)
    await scene.client.xclaim(
        scene.keys.queue, "workers", wait_queue_name("chat"), 0, ids, idle=60_000, justid=True
    )
    kept, after = [], ""
    while page := await wait_queues.touch("chat", after):
        kept += page
        after = page[-1]
    assert kept == ids
    assert await scene.autoclaim("c9", 30_000) == []
    assert await wait_queues.count() == {"chat": 450}


async def test_deleted_or_acked_messages_do_not_block_the_next(scene: Scene) -> None:
    wait_queues = rooms_of(scene)
    await scene.group()
    await scene.post(4)
    ids = await scene.take(4)
    await wait_queues.put("chat", ids)
    await scene.client.xdel(scene.keys.queue, ids[0])
    await scene.client.xack(scene.keys.queue, "workers", ids[1])
    taken = [each.id for each in await wait_queues.take(["chat"], "c2", 2)]
    taken += [each.id for each in await wait_queues.take(["chat"], "c2", 2)]
    assert taken == ids[2:]
    assert await scene.pending() == 2
    assert await wait_queues.count() == {}


@pytest.mark.parametrize("spoilt", ["no queue", "no group", "a string"])
async def test_without_a_queue_nothing_is_waiting(scene: Scene, spoilt: str) -> None:
    wait_queues = rooms_of(scene)
    if spoilt == "no group":
        await scene.post()
    elif spoilt == "a string":
        await scene.client.set(scene.keys.queue, "a string")
    assert await wait_queues.count() == {}
    assert await wait_queues.take(["chat"], "c1", 3) == []
    assert await wait_queues.touch("chat") == []


async def test_a_taken_message_can_be_begun(scene: Scene) -> None:
    wait_queues = rooms_of(scene)
    job_id, message_id = await scene.waiting()
    await wait_queues.put("chat", [message_id])
    [taken] = await wait_queues.take(["chat"], "c1", 1)
    assert (await scene.begin(job_id, taken.id, "t1")).answer is Answer.RUN
