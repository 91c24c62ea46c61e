"""Invalid requests are rejected before Redis is called, and never with a 500."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.asgi import Client
from tests.gateway.conftest import Gateway, Make, check_problem
from tests.gateway.features.bullmq.kit import QueueApi

BEYOND: list[tuple[Any, str]] = [
    ({"priority": -1}, "/opts/priority"),
    ({"priority": 2_097_152}, "/opts/priority"),
    ({"priority": 1.5}, "/opts/priority"),
    ({"priority": "1"}, "/opts/priority"),
    ({"attempts": 0}, "/opts/attempts"),
    ({"attempts": True}, "/opts/attempts"),
    ({"delay": -1}, "/opts/delay"),
    ({"delay": 1 << 70}, "/opts/delay"),
    ({"backoff": -5}, "/opts/backoff"),
    ({"backoff": {"type": "linear", "delay": 1}}, "/opts/backoff"),
    ({"backoff": {"delay": 1}}, "/opts/backoff"),
    ({"backoff": {"type": "fixed", "delay": -1}}, "/opts/backoff"),
    ({"backoff": {"type": "fixed", "delay": 1, "jitter": 1.1}}, "/opts/backoff"),
    ({"backoff": {"type": "fixed", "delay": 1, "jitter": -0.1}}, "/opts/backoff"),
    ({"jobId": "a:b"}, "/opts/jobId"),
    ({"jobId": "123"}, "/opts/jobId"),
    ({"jobId": "٣٤"}, "/opts/jobId"),
    ({"jobId": ""}, "/opts/jobId"),
    ({"jobId": "x" * 129}, "/opts/jobId"),
    ({"jobId": "a\nb"}, "/opts/jobId"),
    ({"jobId": "a/b"}, "/opts/jobId"),
    ({"jobId": "wait"}, "/opts/jobId"),
    ({"jobId": "meta"}, "/opts/jobId"),
    ({"removeOnComplete": -1}, "/opts/removeOnComplete"),
    ({"removeOnComplete": "yes"}, "/opts/removeOnComplete"),
    ({"removeOnFail": {"age": -1}}, "/opts/removeOnFail"),
    ({"removeOnFail": {"years": 1}}, "/opts/removeOnFail"),
    ({"deduplication": {}}, "/opts/deduplication"),
    ({"deduplication": {"id": "", "ttl": 1}}, "/opts/deduplication"),
    ({"deduplication": {"id": "d", "ttl": -1}}, "/opts/deduplication"),
    ({"repeat": {"every": 1000}}, "/opts/repeat"),
    ({"parent": {"id": "1", "queue": "bull:other"}}, "/opts/parent"),
    ("fast", "/opts"),
]
NO_JOBS: list[Any] = [
    [],
    {},
    {"data": {}},
    {"name": ""},
    {"name": "x" * 257},
    {"name": 7},
    {"name": "a\0"},
]


async def test_options_out_of_bounds_are_rejected(api: QueueApi) -> None:
    for opts, pointer in BEYOND:
        answer = await api.post({"name": "a", "data": {}, "opts": opts})
        problem = check_problem(answer, 422, "invalid_request")
        pointers = [fault["pointer"] for fault in problem["errors"]]
        assert all(suffix.startswith(pointer) for suffix in pointers), (opts, pointers)
    assert await api.gateway.redis.keys("bull:*") == []


async def test_invalid_jobs_are_rejected(api: QueueApi) -> None:
    for body in NO_JOBS:
        check_problem(await api.post(body), 422, "invalid_request")


async def test_options_at_their_bounds_are_accepted(api: QueueApi) -> None:
    for opts in ({"priority": 2_097_151}, {"priority": 0}, {"delay": 0}, {"attempts": 1}):
        assert (await api.post({"name": "a", "opts": opts})).status == 202


async def test_internal_tools_are_rejected(api: QueueApi) -> None:
    body = {"name": "tool", "data": {"tool": "workflow.step"}}
    check_problem(await api.post(body), 422, "invalid_request")


async def test_data_that_is_too_long_is_rejected(real_make: Make) -> None:
    api = QueueApi(real_make(bullmq_add_queues="video", max_payload_bytes=100))
    assert (await api.post({"name": "a", "data": {"t": "x" * 90}})).status == 202
    too_long = await api.post({"name": "a", "data": {"t": "x" * 95}})
    check_problem(too_long, 413, "payload_too_large")
    check_problem(await api.post(b'"' + b"x" * 9000 + b'"'), 413, "body_too_large")


async def test_malformed_bodies_are_rejected(api: QueueApi) -> None:
    check_problem(await api.post(b"{"), 400, "malformed_json")
    check_problem(await api.post(b"[" * 100 + b"]" * 100), 400, "nested_too_deep")
    answer = await api.post(b"a=1", {"content-type": "application/x-www-form-urlencoded"})
    check_problem(answer, 415, "unsupported_media_type")


async def test_a_queue_that_is_not_configured_is_not_found(api: QueueApi) -> None:
    other = QueueApi(api.gateway, "secret")
    client: Client = api.gateway.client
    check_problem(await other.post({"name": "a"}), 404, "queue_not_found")
    check_problem(await other.get("1"), 404, "queue_not_found")
    check_problem(await other.delete("1"), 404, "queue_not_found")
    for suffix in ("/events", "/jobs/1/events"):
        check_problem(await client.get(other.path + suffix), 404, "queue_not_found")
    check_problem(await client.send("PUT", f"{api.path}/jobs/1"), 405)


async def test_without_the_setting_no_queue_is_found(fake_gateway: Gateway) -> None:
    check_problem(await QueueApi(fake_gateway).post({"name": "a"}), 404, "queue_not_found")


async def test_unknown_and_invalid_job_ids_are_not_found(api: QueueApi) -> None:
    await api.add()
    before = await api.gateway.snapshot()
    for job_id in ("7", "meta", "wait", "events", "x" * 2000, "%F0%9F%8E%AC", "a:lock", "1%00"):
        check_problem(await api.get(job_id), 404, "job_not_found")
        check_problem(await api.delete(job_id), 404, "job_not_found")
        stream = f"{api.path}/jobs/{job_id}/events"
        check_problem(await api.gateway.client.get(stream), 404, "job_not_found")
    assert await api.gateway.snapshot() == before


async def test_an_invalid_job_hash_is_tolerated(api: QueueApi) -> None:
    odd = {"name": "a", "timestamp": "soon", "data": "{", "opts": "?", "returnvalue": "no json"}
    await api.gateway.redis.hset(api.keys.job("odd"), mapping=odd)  # type: ignore[misc]
    view = (await api.get("odd")).json()
    assert (view["state"], view["timestamp"], view["progress"]) == ("unknown", 0, 0)
    assert view["data"] == {"_raw": "{"}


async def test_keys_of_another_type_are_reported(api: QueueApi) -> None:
    await api.gateway.redis.set(api.keys.key("id"), "no number")
    check_problem(await api.post({"name": "a"}), 503, "store_corrupt")
    await api.gateway.redis.set(api.keys.key("completed"), "x")
    await api.gateway.redis.hset(api.keys.job("1"), mapping={"name": "a", "timestamp": "1"})  # type: ignore[misc]
    check_problem(await api.get("1"), 503, "store_corrupt")
    assert json.loads((await api.gateway.client.get("/healthz")).body)
