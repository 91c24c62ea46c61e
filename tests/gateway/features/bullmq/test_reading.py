"""Reading a BullMQ job, and removing or canceling it."""

from __future__ import annotations

from tests.gateway.conftest import check_problem
from tests.gateway.features.bullmq.kit import Door


async def test_from_waiting_to_completed(door: Door) -> None:
    job_id = await door.add({"attempts": 3})
    waiting = await door.get(job_id)
    assert waiting.header("retry-after") == "1"
    view = waiting.json()
    assert (view["state"], view["progress"], view["attemptsMade"]) == ("waiting", 0, 0)
    assert view["opts"]["attempts"] == 3
    assert view["returnvalue"] is None
    await door.begin(job_id)
    await door.gateway.redis.hset(door.keys.job(job_id), "progress", "25")  # type: ignore[misc]
    view = (await door.get(job_id)).json()
    assert (view["state"], view["progress"], view["attemptsStarted"]) == ("active", 25, 1)
    assert view["processedBy"] == "node-1"
    await door.complete(job_id, {"url": "https://example.com/v"})
    done = await door.get(job_id)
    assert done.header("retry-after") is None
    view = done.json()
    assert (view["state"], view["attemptsMade"]) == ("completed", 1)
    assert view["returnvalue"] == {"url": "https://example.com/v"}
    assert view["finishedOn"] == 1760000000001


async def test_a_version_that_is_known_is_not_sent_again(door: Door) -> None:
    job_id = await door.add()
    etag = (await door.get(job_id)).header("etag") or ""
    path = f"{door.path}/jobs/{job_id}"
    assert (await door.gateway.client.get(path, {"if-none-match": etag})).status == 304
    await door.begin(job_id)
    assert (await door.gateway.client.get(path, {"if-none-match": etag})).status == 200


async def test_a_job_that_waits_is_removed_whole(door: Door) -> None:
    for opts in ({}, {"priority": 1}, {"delay": 60_000}):
        job_id = await door.add(opts)
        answer = await door.delete(job_id)
        assert answer.status == 200
        assert answer.json() == {"id": job_id, "queue": "video", "outcome": "removed"}
        check_problem(await door.get(job_id), 404, "job_not_found")
        check_problem(await door.delete(job_id), 404, "job_not_found")
    for place in ("wait", "prioritized", "delayed"):
        assert not await door.gateway.redis.exists(door.keys.key(place))


async def test_a_job_that_runs_is_asked_to_end(door: Door) -> None:
    job_id = await door.add()
    await door.begin(job_id)
    listening = door.gateway.redis.pubsub()
    await listening.subscribe(door.keys.control)
    assert await listening.get_message(timeout=5) is not None
    answer = await door.delete(job_id)
    assert (answer.status, answer.json()["outcome"]) == (202, "canceling")
    told = await listening.get_message(ignore_subscribe_messages=True, timeout=5)
    assert told is not None
    assert told["data"] == job_id.encode()
    assert await door.gateway.redis.pttl(door.keys.cancel(job_id)) > 0
    assert (await door.get(job_id)).json()["state"] == "active"
    await listening.aclose()  # type: ignore[no-untyped-call]


async def test_a_job_that_has_ended_is_removed(door: Door) -> None:
    job_id = await door.add()
    await door.begin(job_id)
    await door.complete(job_id, 1)
    assert (await door.delete(job_id)).json()["outcome"] == "removed"
    assert not await door.gateway.redis.exists(door.keys.key("completed"))


async def test_the_next_job_of_a_scheduler_is_not_removed(door: Door) -> None:
    job_id, redis = "repeat:daily:1760000000000", door.gateway.redis
    fields = {"name": "a", "timestamp": "1", "data": "{}", "opts": "{}", "rjk": "daily"}
    await redis.hset(door.keys.job(job_id), mapping=fields)  # type: ignore[misc]
    await redis.zadd(door.keys.key("repeat"), {"daily": 1760000000000})
    assert (await door.get(job_id)).json()["id"] == job_id
    check_problem(await door.delete(job_id), 409, "scheduled_job")
    assert await door.fields(job_id) == fields
