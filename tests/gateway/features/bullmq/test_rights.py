"""Authorisation: scopes, isolation of tenants, keys with limits that cannot be enforced."""

from __future__ import annotations

import json

from common.contracts.access import Scope
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import check_problem
from tests.gateway.features.bullmq.kit import Door

READ, WRITE = (Scope.JOBS_READ.value,), (Scope.JOBS_WRITE.value,)


async def test_scopes(door: Door) -> None:
    job_id = await door.add()
    reads, writes = (
        await key_for(door.gateway, scopes=READ),
        await key_for(door.gateway, scopes=WRITE),
    )
    check_problem(await door.post({"name": "a"}, bearer(reads)), 403, "insufficient_scope")
    check_problem(await door.get(job_id, writes), 403, "insufficient_scope")
    check_problem(await door.delete(job_id, reads), 403, "insufficient_scope")
    for place in ("/events", f"/jobs/{job_id}/events"):
        answer = await door.gateway.client.get(door.path + place, bearer(writes))
        check_problem(answer, 403, "insufficient_scope")
    assert (await door.post({"name": "a"}, bearer(writes))).status == 202
    assert (await door.get(job_id, reads)).status == 200
    assert (await door.delete(job_id, writes)).status == 200


async def test_tenants_do_not_see_each_others_jobs(door: Door) -> None:
    ours = await key_for(door.gateway, tenant="ours")
    theirs = await key_for(door.gateway, tenant="theirs")
    numbered = await door.add()
    made = []
    for opts in ({}, {"jobId": "same"}, {"deduplication": {"id": "same"}}):
        for key in (ours, theirs):
            answer = await door.post({"name": "a", "opts": opts}, bearer(key))
            assert answer.json()["outcome"] == "added", opts
            made.append((key, answer.json()["id"]))
    for key in (ours, theirs):
        answer = await door.post({"name": "a"}, bearer(key, idempotency_key="once"))
        assert answer.json()["outcome"] == "added"
        made.append((key, answer.json()["id"]))
    for key, job_id in made:
        other = theirs if key == ours else ours
        assert (await door.get(job_id, key)).status == 200
        check_problem(await door.get(job_id, other), 404, "job_not_found")
        check_problem(await door.delete(job_id, other), 404, "job_not_found")
        path = f"{door.path}/jobs/{job_id}/events"
        check_problem(await door.gateway.client.get(path, bearer(other)), 404, "job_not_found")
        assert (await door.get(job_id)).status == 200  # a local caller without a key
    check_problem(await door.get(numbered, ours), 404, "job_not_found")


async def test_of_a_queue_a_tenant_hears_of_its_own_jobs_only(door: Door) -> None:
    ours = await key_for(door.gateway, tenant="ours")
    theirs = await key_for(door.gateway, tenant="theirs")
    stream = await door.watch(authorization=f"Bearer {ours}")
    await stream.event("hello")
    await door.add()
    await door.post({"name": "a"}, bearer(theirs))
    job_id = (await door.post({"name": "a"}, bearer(ours))).json()["id"]
    await door.emit("drained", "")
    told = [await stream.next() for _ in range(2)]
    assert {json.loads(block.data)["data"]["jobId"] for block in told if block} == {job_id}


async def test_a_key_for_some_tasks_adds_jobs_of_those_names(door: Door) -> None:
    key = await key_for(door.gateway, tasks=("chat",))
    check_problem(await door.post({"name": "render"}, bearer(key)), 403, "task_not_allowed")
    assert (await door.post({"name": "chat"}, bearer(key))).status == 202


async def test_limits_that_cannot_be_kept_are_not_promised(door: Door) -> None:
    for spec in ({"rate_per_min": 60}, {"max_jobs": 5}, {"tools": ("calculator",)}):
        key = await key_for(door.gateway, **spec)
        check_problem(await door.post({"name": "a"}, bearer(key)), 403, "key_limited")
    assert await door.gateway.redis.keys("bull:*") == []
