"""Reading a BullMQ job, and removing or canceling it."""

from __future__ import annotations

from tests.gateway.conftest import check_problem
from tests.gateway.features.bullmq.kit import QueueApi


async def test_a_job_is_described_in_every_state(api: QueueApi) -> None:
    job_id = await api.add({"attempts": 3})
    waiting = await api.get(job_id)
    assert waiting.header("retry-after") == "1"
    view = waiting.json()
    assert (view["state"], view["progress"], view["attemptsMade"]) == ("waiting", 0, 0)
    assert view["opts"]["attempts"] == 3
    assert view["returnvalue"] is None
    await api.begin(job_id)
    await api.gateway.redis.hset(api.keys.job(job_id), "progress", "25")  # type: ignore[misc]
    view = (await api.get(job_id)).json()
    assert (view["state"], view["progress"], view["attemptsStarted"]) == ("active", 25, 1)
    assert view["processedBy"] == "node-1"
    await api.complete(job_id, {"url": "https://example.com/v"})
    done = await api.get(job_id)
    assert done.header("retry-after") is None
    view = done.json()
    assert (view["state"], view["attemptsMade"]) == ("completed", 1)
    assert view["returnvalue"] == {"url": "https://example.com/v"}
    assert view["finishedOn"] == 1760000000001


async def test_an_unchanged_job_gets_304(api: QueueApi) -> None:
    job_id = await api.add()
    etag = (await api.get(job_id)).header("etag") or ""
    path = f"{api.path}/jobs/{job_id}"
    assert (await api.gateway.client.get(path, {"if-none-match": etag})).status == 304
    await api.begin(job_id)
    assert (await api.gateway.client.get(path, {"if-none-match": etag})).status == 200


async def test_a_waiting_job_is_removed_completely(api: QueueApi) -> None:
    for opts in ({}, {"priority": 1}, {"delay": 60_000}):
        job_id = await api.add(opts)
        answer = await api.delete(job_id)
        assert answer.status == 200
        assert answer.json() == {"id": job_id, "queue": "video", "outcome": "removed"}
        check_problem(await api.get(job_id), 404, "job_not_found")
        check_problem(await api.delete(job_id), 404, "job_not_found")
    for state in ("wait", "prioritized", "delayed"):
        assert not await api.gateway.redis.exists(api.keys.key(state))


async def test_the_worker_of_an_active_job_is_notified(api: QueueApi) -> None:
    job_id = await api.add()
    await api.begin(job_id)
    listening = api.gateway.redis.pubsub()
    await listening.subscribe(api.keys.control)
    assert await listening.get_message(timeout=5) is not None
    answer = await api.delete(job_id)
    assert (answer.status, answer.json()["outcome"]) == (202, "canceling")
    message = await listening.get_message(ignore_subscribe_messages=True, timeout=5)
    assert message is not None
    assert message["data"] == job_id.encode()
    assert await api.gateway.redis.pttl(api.keys.cancel(job_id)) > 0
    assert (await api.get(job_id)).json()["state"] == "active"
    await listening.aclose()  # type: ignore[no-untyped-call]


async def test_a_job_that_has_ended_is_removed(api: QueueApi) -> None:
    job_id = await api.add()
    await api.begin(job_id)
    await api.complete(job_id, 1)
    assert (await api.delete(job_id)).json()["outcome"] == "removed"
    assert not await api.gateway.redis.exists(api.keys.key("completed"))


async def test_the_next_job_of_a_scheduler_is_not_removed(api: QueueApi) -> None:
    job_id, redis = "repeat:daily:1760000000000", api.gateway.redis
    fields = {"name": "a", "timestamp": "1", "data": "{}", "opts": "{}", "rjk": "daily"}
    await redis.hset(api.keys.job(job_id), mapping=fields)  # type: ignore[misc]
    await redis.zadd(api.keys.key("repeat"), {"daily": 1760000000000})
    assert (await api.get(job_id)).json()["id"] == job_id
    check_problem(await api.delete(job_id), 409, "scheduled_job")
    assert await api.fields(job_id) == fields
