"""Event streams of a BullMQ job and of a whole queue, and metrics of the queues."""

from __future__ import annotations

import json

import pytest

from tests.support.gateway.asgi import Exchange
from tests.support.gateway.bullmq import QueueApi
from tests.support.gateway.harness import Gateway, Make, check_problem

pytestmark = pytest.mark.real_redis


async def hello(stream: Exchange) -> dict[str, object]:
    block = await stream.event("hello")
    return json.loads(block.data)["data"]


async def test_a_stream_has_the_events_of_its_job_until_its_end(api: QueueApi) -> None:
    job_id, other = await api.add(), await api.add()
    stream = await api.watch(job_id)
    assert stream.header("content-type") == "text/event-stream; charset=utf-8"
    facts = await hello(stream)
    assert (facts["id"], facts["queue"], facts["state"]) == (job_id, "video", "waiting")
    assert [(await stream.event(name)).event for name in ("added", "waiting")]
    await api.begin(other)
    await api.begin(job_id)
    await api.emit("progress", other, data="99")
    await api.emit("progress", job_id, data="25")
    await api.complete(other, None)
    last = await api.complete(job_id, {"url": "u"})
    await api.emit("drained", "")
    blocks = await stream.rest()
    assert [block.event for block in blocks] == ["active", "progress", "completed"]
    progress, completed = json.loads(blocks[1].data), json.loads(blocks[2].data)
    assert progress["type"] == "progress"
    assert progress["data"] == {"jobId": job_id, "data": 25}
    assert completed["data"]["returnvalue"] == {"url": "u"}
    assert completed["ts"] == int(last.split("-")[0])
    assert blocks[2].id == last


async def test_the_stream_of_an_ended_job_starts_at_the_beginning(api: QueueApi) -> None:
    job_id = await api.add()
    for _ in range(450):  # some pages of other jobs' events
        await api.emit("progress", "999", data="1")
    await api.begin(job_id)
    last = await api.complete(job_id, 1)
    stream = await api.watch(job_id)
    assert (await hello(stream))["state"] == "completed"
    assert [block.event for block in await stream.rest()] == [
        *("added", "waiting", "active", "completed")
    ]
    assert (await api.watch(job_id, last_event_id=last)).status == 204


async def test_a_job_removed_on_completion_still_has_its_events(api: QueueApi) -> None:
    job_id = await api.add()
    await api.begin(job_id)
    last = await api.complete(job_id, 1)
    await api.gateway.redis.delete(api.keys.job(job_id))
    await api.gateway.redis.zrem(api.keys.key("completed"), job_id)
    stream = await api.watch(job_id)
    assert "state" not in await hello(stream)
    assert [block.event for block in await stream.rest()][-1] == "completed"
    assert (await api.watch(job_id, last_event_id=last)).status == 204


async def test_a_stream_continues_if_a_failed_job_is_retried(api: QueueApi) -> None:
    job_id = await api.add()
    await api.emit("failed", job_id, failedReason="no", prev="active")
    await api.emit("waiting", job_id, prev="failed")
    stream = await api.watch(job_id)
    for name in ("added", "waiting", "failed", "waiting"):
        seen = await stream.event(name)
    await stream.hang_up()
    await api.begin(job_id)
    resumed = await api.watch(job_id, last_event_id=seen.id or "")
    await hello(resumed)
    await api.complete(job_id, 1)
    assert [block.event for block in await resumed.rest()] == ["active", "completed"]
    other = await api.add()
    stream = await api.watch(other)
    await stream.event("waiting")
    await api.delete(other)
    assert [block.event for block in await stream.rest()] == ["removed"]


async def test_a_queue_stream_has_new_events_of_all_jobs(api: QueueApi) -> None:
    unused = await api.watch()  # the queue has no events yet
    assert (await hello(unused))["queue"] == "video"
    await api.add()
    assert (await unused.event("added")).event == "added"
    stream = await api.watch()
    await hello(stream)
    second = await api.add()
    added = await stream.event("added")
    assert json.loads(added.data)["data"]["jobId"] == second
    assert (await stream.event("waiting")).id
    await api.emit("a\nb", second)
    odd = await stream.event("ab")
    assert json.loads(odd.data)["type"] == "ab"
    answer = await api.gateway.client.get(f"{api.path}/events", {"last-event-id": "x"})
    check_problem(answer, 400, "invalid_last_event_id")


async def scrape(gateway: Gateway) -> dict[str, float]:
    text = (await gateway.client.get("/metrics")).body.decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("gw_bullmq"))
    return {name: float(value) for name, value in pairs}


async def test_jobs_are_counted_by_queue_and_outcome(api: QueueApi) -> None:
    await api.add()
    await api.add({"priority": 1, "jobId": "mine"})
    await api.add({"priority": 1, "jobId": "mine"})
    await api.add({"delay": 60_000})
    await (await api.watch()).event("hello")
    metrics = await scrape(api.gateway)
    added = 'gw_bullmq_jobs_total{outcome="%s",queue="video"}'
    assert metrics[added % "created"] == 3
    assert metrics[added % "duplicate"] == 1
    assert metrics[added % "full"] == 0
    depth = 'gw_bullmq_queue_jobs{queue="video",state="%s"}'
    assert [metrics[depth % state] for state in ("wait", "prioritized", "delayed", "failed")] == [
        *(1, 1, 1, 0)
    ]
    assert metrics["gw_bullmq_sse_clients"] == 1


async def test_a_key_of_another_type_is_left_out(api: QueueApi) -> None:
    await api.gateway.redis.set(api.keys.key("failed"), "x")
    metrics = await scrape(api.gateway)
    assert 'gw_bullmq_queue_jobs{queue="video",state="failed"}' not in metrics
    assert metrics['gw_bullmq_queue_jobs{queue="video",state="wait"}'] == 0


@pytest.mark.fakeredis_only
async def test_without_queues_there_are_no_queue_metrics(make: Make) -> None:
    assert await scrape(make()) == {"gw_bullmq_sse_clients": 0}
