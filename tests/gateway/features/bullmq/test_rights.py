"""Which BullMQ requests are rejected: scopes, tenants, limits of keys, invalid requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.contracts.access import Scope
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Client
from tests.support.gateway.bullmq import QueueApi
from tests.support.gateway.harness import Make, check_problem

pytestmark = pytest.mark.real_redis

READ, WRITE = (Scope.JOBS_READ.value,), (Scope.JOBS_WRITE.value,)


async def test_tenants_do_not_see_jobs_of_other_tenants(api: QueueApi) -> None:
    own_key = await key_for(api.gateway, tenant="own")
    other_key = await key_for(api.gateway, tenant="other")
    numbered = await api.add()
    created = []
    for opts in ({}, {"jobId": "same"}, {"deduplication": {"id": "same"}}):
        for key in (own_key, other_key):
            answer = await api.post({"name": "a", "opts": opts}, bearer(key))
            assert answer.json()["outcome"] == "added", opts
            created.append((key, answer.json()["id"]))
    for key in (own_key, other_key):
        answer = await api.post({"name": "a"}, bearer(key, idempotency_key="once"))
        assert answer.json()["outcome"] == "added"
        created.append((key, answer.json()["id"]))
    for key, job_id in created:
        other = other_key if key == own_key else own_key
        assert (await api.get(job_id, key)).status == 200
        check_problem(await api.get(job_id, other), 404, "job_not_found")
        check_problem(await api.delete(job_id, other), 404, "job_not_found")
        path = f"{api.path}/jobs/{job_id}/events"
        check_problem(await api.gateway.client.get(path, bearer(other)), 404, "job_not_found")
        assert (await api.get(job_id)).status == 200  # a local caller without a key
    check_problem(await api.get(numbered, own_key), 404, "job_not_found")


async def test_a_queue_stream_has_only_jobs_of_the_tenant(api: QueueApi) -> None:
    own_key = await key_for(api.gateway, tenant="own")
    other_key = await key_for(api.gateway, tenant="other")
    stream = await api.watch(authorization=f"Bearer {own_key}")
    await stream.event("hello")
    await api.add()
    await api.post({"name": "a"}, bearer(other_key))
    job_id = (await api.post({"name": "a"}, bearer(own_key))).json()["id"]
    await api.emit("drained", "")
    blocks = [await stream.next() for _ in range(2)]
    assert {json.loads(block.data)["data"]["jobId"] for block in blocks if block} == {job_id}


async def test_a_key_for_some_tasks_adds_only_jobs_of_those_names(api: QueueApi) -> None:
    key = await key_for(api.gateway, tasks=("chat",))
    check_problem(await api.post({"name": "render"}, bearer(key)), 403, "task_not_allowed")
    assert (await api.post({"name": "chat"}, bearer(key))).status == 202


async def test_keys_with_limits_that_cannot_be_enforced_are_rejected(api: QueueApi) -> None:
    for spec in ({"rate_per_min": 60}, {"max_jobs": 5}, {"tools": ("calculator",)}):
        key = await key_for(api.gateway, **spec)
        check_problem(await api.post({"name": "a"}, bearer(key)), 403, "key_limited")
    assert await api.gateway.redis.keys("bull:*") == []


INVALID_OPTIONS: dict[str, tuple[Any, ...]] = {
    "priority": (-1, 2_097_152, 1.5, "1"),
    "attempts": (0, True),
    "delay": (-1, 1 << 70),
    "backoff": (
        *(-5, {"type": "linear", "delay": 1}, {"delay": 1}, {"type": "fixed", "delay": -1}),
        {"type": "fixed", "delay": 1, "jitter": 1.1},
        {"type": "fixed", "delay": 1, "jitter": -0.1},
    ),
    "jobId": ("a:b", "123", "٣٤", "", "x" * 129, "a\nb", "a/b", "wait", "meta"),
    "removeOnComplete": (-1, "yes"),
    "removeOnFail": ({"age": -1}, {"years": 1}),
    "deduplication": ({}, {"id": "", "ttl": 1}, {"id": "d", "ttl": -1}),
    "repeat": ({"every": 1000},),
    "parent": ({"id": "1", "queue": "bull:other"},),
}
NO_JOBS: list[Any] = [
    *([], {}, {"data": {}}, {"name": ""}, {"name": "x" * 257}, {"name": 7}, {"name": "a\0"}),
    {"name": "a", "opts": "fast"},
]


async def test_invalid_requests_are_rejected(api: QueueApi) -> None:
    for name, values in INVALID_OPTIONS.items():
        for value in values:
            answer = await api.post({"name": "a", "data": {}, "opts": {name: value}})
            problem = check_problem(answer, 422, "invalid_request")
            pointers = [fault["pointer"] for fault in problem["errors"]]
            assert all(pointer.startswith(f"/opts/{name}") for pointer in pointers), value
    internal = {"name": "tool", "data": {"tool": "workflow.step"}}
    for body in (*NO_JOBS, internal):
        check_problem(await api.post(body), 422, "invalid_request")
    check_problem(await api.post(b"{"), 400, "malformed_json")
    check_problem(await api.post(b"[" * 100 + b"]" * 100), 400, "nested_too_deep")
    answer = await api.post(b"a=1", {"content-type": "application/x-www-form-urlencoded"})
    check_problem(answer, 415, "unsupported_media_type")
    assert await api.gateway.redis.keys("bull:*") == []
    for opts in ({"priority": 2_097_151}, {"priority": 0}, {"delay": 0}, {"attempts": 1}):
        assert (await api.post({"name": "a", "opts": opts})).status == 202


async def test_data_that_is_too_long_is_rejected(make: Make) -> None:
    api = QueueApi(make(bullmq_add_queues="video", max_payload_bytes=100))
    assert (await api.post({"name": "a", "data": {"t": "x" * 90}})).status == 202
    too_long = await api.post({"name": "a", "data": {"t": "x" * 95}})
    check_problem(too_long, 413, "payload_too_large")
    check_problem(await api.post(b'"' + b"x" * 9000 + b'"'), 413, "body_too_large")


async def test_a_queue_that_is_not_configured_is_not_found(api: QueueApi, make: Make) -> None:
    other = QueueApi(api.gateway, "secret")
    client: Client = api.gateway.client
    check_problem(await other.post({"name": "a"}), 404, "queue_not_found")
    check_problem(await other.get("1"), 404, "queue_not_found")
    check_problem(await other.delete("1"), 404, "queue_not_found")
    for suffix in ("/events", "/jobs/1/events"):
        check_problem(await client.get(other.path + suffix), 404, "queue_not_found")
    check_problem(await client.send("PUT", f"{api.path}/jobs/1"), 405)
    check_problem(await QueueApi(make()).post({"name": "a"}), 404, "queue_not_found")


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
