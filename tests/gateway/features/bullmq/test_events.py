"""Event streams of a BullMQ job and of a whole queue."""

from __future__ import annotations

import json

from tests.gateway.asgi import Exchange
from tests.gateway.conftest import Make, check_problem
from tests.gateway.features.bullmq.kit import Door


async def hello(stream: Exchange) -> dict[str, object]:
    block = await stream.event("hello")
    found: dict[str, object] = json.loads(block.data)["data"]
    return found


async def test_a_jobs_events_until_its_end(door: Door) -> None:
    job_id, other = await door.add(), await door.add()
    stream = await door.watch(job_id)
    assert (
        stream.header(
            "content-type",
        )
        == "text/event-stream; charset=utf-8"
    )
    facts = await hello(stream)
    assert (facts["id"], facts["queue"], facts["state"]) == (job_id, "video", "waiting")
    assert [(await stream.event(name)).event for name in ("added", "waiting")]
    await door.begin(other)
    await door.begin(job_id)
    await door.emit("progress", other, data="99")
    await door.emit("progress", job_id, data="25")
    await door.complete(other, None)
    last = await door.complete(job_id, {"url": "u"})
    await door.emit("drained", "")
    blocks = await stream.rest()
    assert [block.event for block in blocks] == ["active", "progress", "completed"]
    progress, completed = json.loads(blocks[1].data), json.loads(blocks[2].data)
    assert progress["type"] == "progress"
    assert progress["data"] == {"jobId": job_id, "data": 25}
    assert completed["data"]["returnvalue"] == {"url": "u"}
    assert completed["ts"] == int(last.split("-")[0])
    assert blocks[2].id == last


async def test_a_job_that_has_ended_is_told_from_the_beginning(door: Door) -> None:
    job_id = await door.add()
    for _ in range(450):  # some pages of other jobs' events
        await door.emit("progress", "999", data="1")
    await door.begin(job_id)
    last = await door.complete(job_id, 1)
    stream = await door.watch(job_id)
    assert (await hello(stream))["state"] == "completed"
    assert [block.event for block in await stream.rest()] == [
        *("added", "waiting", "active", "completed")
    ]
    assert (await door.watch(job_id, last_event_id=last)).status == 204


async def test_a_job_that_was_removed_when_it_completed_is_still_told_of(door: Door) -> None:
    job_id = await door.add()
    await door.begin(job_id)
    last = await door.complete(job_id, 1)
    await door.gateway.redis.delete(door.keys.job(job_id))
    await door.gateway.redis.zrem(door.keys.key("completed"), job_id)
    stream = await door.watch(job_id)
    assert "state" not in await hello(stream)
    assert [block.event for block in await stream.rest()][-1] == "completed"
    assert (await door.watch(job_id, last_event_id=last)).status == 204


async def test_removal_ends_the_stream(door: Door) -> None:
    job_id = await door.add()
    stream = await door.watch(job_id)
    await stream.event("waiting")
    await door.delete(job_id)
    assert [block.event for block in await stream.rest()] == ["removed"]


async def test_resuming_brings_each_event_once(door: Door) -> None:
    job_id = await door.add()
    stream = await door.watch(job_id)
    seen = await stream.event("waiting")
    await stream.hang_up()
    await door.begin(job_id)
    await door.complete(job_id, 1)
    again = await door.watch(job_id, last_event_id=seen.id or "")
    await hello(again)
    assert [block.event for block in await again.rest()] == ["active", "completed"]


async def test_a_failed_job_that_runs_once_more_goes_on(door: Door) -> None:
    job_id = await door.add()
    await door.emit("failed", job_id, failedReason="no", prev="active")
    await door.emit("waiting", job_id, prev="failed")
    stream = await door.watch(job_id)
    for name in ("added", "waiting", "failed", "waiting"):
        assert (await stream.event(name)).event == name
    await door.begin(job_id)
    await door.complete(job_id, 1)
    assert [block.event for block in await stream.rest()] == ["active", "completed"]


async def test_ndjson(door: Door) -> None:
    job_id = await door.add()
    await door.begin(job_id)
    await door.complete(job_id, {"ä": "🎬\n"})
    path = f"{door.path}/jobs/{job_id}/events"
    answer = await door.gateway.client.get(path, {"accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["type"] for line in lines] == [
        *("hello", "added", "waiting", "active", "completed")
    ]
    assert lines[-1]["data"]["returnvalue"] == {"ä": "🎬\n"}


async def test_a_queues_events_from_now_on(door: Door) -> None:
    await door.add()
    stream = await door.watch()
    assert (await hello(stream))["queue"] == "video"
    second = await door.add()
    added = await stream.event("added")
    assert json.loads(added.data)["data"]["jobId"] == second
    assert (await stream.event("waiting")).id
    await door.emit("a\nb", second)
    odd = await stream.event("ab")
    assert json.loads(odd.data)["type"] == "ab"


async def test_a_queue_that_was_never_used_is_waited_for(door: Door) -> None:
    stream = await door.watch()
    await hello(stream)
    await door.add()
    assert (await stream.event("added")).event == "added"


async def test_what_was_trimmed_is_a_gap(door: Door) -> None:
    first = await door.emit("added", "1")
    await door.emit("waiting", "1")
    await door.gateway.redis.xtrim(door.keys.events, maxlen=1, approximate=False)
    stream = await door.watch(last_event_id=first)
    await stream.event("gap")
    assert (await stream.event("waiting")).event == "waiting"


async def test_goodbye_and_bounds(real_make: Make) -> None:
    door = Door(real_make(bullmq_add_queues="video", sse_max_clients=1))
    stream = await door.watch()
    await hello(stream)
    client = door.gateway.client
    check_problem(await client.get(f"{door.path}/events"), 503, "too_many_streams")
    door.gateway.state.streams.close_streams()
    assert [block.event for block in await stream.rest()] == ["shutdown"]
    check_problem(await client.get(f"{door.path}/events", {"accept": "image/png"}), 406)
    odd = {"last-event-id": "x"}
    check_problem(await client.get(f"{door.path}/events", odd), 400, "invalid_last_event_id")
