"""Authorisation: scopes, isolation of tenants, keys with limits that cannot be enforced."""

from __future__ import annotations

import json

from common.contracts.access import Scope
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import check_problem
from tests.gateway.features.bullmq.kit import QueueApi

READ, WRITE = (Scope.JOBS_READ.value,), (Scope.JOBS_WRITE.value,)


async def test_each_request_requires_its_scope(api: QueueApi) -> None:
    job_id = await api.add()
    reads, writes = (
        await key_for(api.gateway, scopes=READ),
        await key_for(api.gateway, scopes=WRITE),
    )
    check_problem(await api.post({"name": "a"}, bearer(reads)), 403, "insufficient_scope")
    check_problem(await api.get(job_id, writes), 403, "insufficient_scope")
    check_problem(await api.delete(job_id, reads), 403, "insufficient_scope")
    for suffix in ("/events", f"/jobs/{job_id}/events"):
        answer = await api.gateway.client.get(api.path + suffix, bearer(writes))
        check_problem(answer, 403, "insufficient_scope")
    assert (await api.post({"name": "a"}, bearer(writes))).status == 202
    assert (await api.get(job_id, reads)).status == 200
    assert (await api.delete(job_id, writes)).status == 200


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
