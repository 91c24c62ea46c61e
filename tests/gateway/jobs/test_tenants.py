"""Tenants: another tenant's jobs look like missing ones, on every route, byte for byte."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from sluice.common.access.record import tenant_tail
from sluice.common.contracts.jobs import JobKeys
from sluice.common.observability.heartbeats import Heartbeat, RunningJob
from sluice.common.redis.partitions import Partitions
from sluice.gateway.jobs.ids import new_job_id, new_job_id_in
from tests.support.gateway.access import bearer, call, key_for, post
from tests.support.gateway.asgi import Answer
from tests.support.gateway.faults import record_calls
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

#: Every request about a job: method, path, headers, body.
ROUTES: dict[str, tuple[str, str, dict[str, str], object]] = {
    "read": ("GET", "", {}, None),
    "read and wait": ("GET", "", {"prefer": "wait=5"}, None),
    "read what changed": ("GET", "", {"if-none-match": '"x"'}, None),
    "delete": ("DELETE", "", {}, None),
    "cancel": ("POST", "/cancel", {}, None),
    "cancel for a reason": ("POST", "/cancel", {}, {"reason": "x"}),
    "cancel and wait": ("POST", "/cancel", {"prefer": "wait=5"}, None),
    "watch": ("GET", "/events", {}, None),
    "watch on": ("GET", "/events", {"last-event-id": "1-0"}, None),
    "watch lines": ("GET", "/events", {"accept": "application/x-ndjson"}, None),
}
EVERY_STATUS = ("queued", "running", "done", "error", "canceled")


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(auth="required")


async def ask(gateway: Gateway, name: str, job_id: str, key: str) -> Answer:
    method, rest, headers, body = ROUTES[name]
    target = f"/v1/jobs/{job_id}{rest}"
    return await gateway.client.send(method, target, {**bearer(key), **headers}, body)


def comparable(answer: Answer, job_id: str) -> Any:
    body = answer.json()
    del body["request_id"]
    assert job_id in body.pop("instance")
    headers = [pair for pair in answer.headers if pair[0] != "x-request-id"]
    return answer.status, headers, body


def test_a_job_id_ends_with_the_tail_of_its_tenant() -> None:
    tail = tenant_tail("shop")
    for count in (1, 2, 3, 16, 256):
        partitions = Partitions.create(JobKeys(), count)
        for number in range(count) if count < 256 else (0, 255):
            ids = {new_job_id_in(partitions, number, tail) for _ in range(8)}
            assert len(ids) == 8
            for job_id in ids:
                assert partitions.number(job_id) == number
                assert job_id.endswith(tail)
                assert (str(uuid.UUID(job_id)), uuid.UUID(job_id).version) == (job_id, 4)
    assert new_job_id(tail).endswith(tail)
    assert not any(new_job_id().endswith(tail) for _ in range(200))


@partitioned
async def test_a_job_of_another_tenant_looks_like_a_missing_one(gateway: Gateway) -> None:
    own_key = await key_for(gateway, tenant="own")
    other_key = await key_for(gateway, tenant="other")
    missing = new_job_id(tenant_tail("own"))
    for status in EVERY_STATUS:
        job_id = (await post(gateway, other_key)).json()["job_id"]
        key = gateway.keys_of(job_id).job(job_id)
        await gateway.redis.hset(key, "status", status)
        before = await gateway.snapshot()
        for name in ROUTES:
            refused = await ask(gateway, name, job_id, own_key)
            check_problem(refused, 404, "job_not_found")
            absent = await ask(gateway, name, missing, own_key)
            assert comparable(refused, job_id) == comparable(absent, missing), name
        assert await gateway.snapshot() == before


@partitioned
async def test_every_key_of_a_tenant_can_use_its_jobs(gateway: Gateway) -> None:
    first, second = [await key_for(gateway, tenant="own") for _ in range(2)]
    admin = await key_for(gateway, scopes=("admin",), tenant="own")
    job_id = (await post(gateway, admin)).json()["job_id"]
    for key in (first, second):
        assert (await ask(gateway, "read", job_id, key)).json()["job_id"] == job_id
    await gateway.finish(job_id)
    stream = await gateway.client.watch(job_id, bearer(second))
    assert [block.event for block in await stream.rest()] == ["hello", "queued", "done"]
    assert (await ask(gateway, "cancel", job_id, second)).status == 200


async def test_operators_see_all_jobs(make: Make) -> None:
    gateway, local = make(auth="required"), make()
    other_key = await key_for(gateway, tenant="other")
    for spec in ({}, {"scopes": ("admin",), "tenant": "own"}):
        operator = await key_for(gateway, **spec)
        job_id = (await post(gateway, other_key)).json()["job_id"]
        assert (await ask(gateway, "read", job_id, operator)).status == 200
        assert (await call(local, "GET", f"/v1/jobs/{job_id}")).status == 200
        assert (await ask(gateway, "cancel", job_id, operator)).status == 200
    job_id = (await post(gateway, await key_for(gateway))).json()["job_id"]
    check_problem(await ask(gateway, "read", job_id, other_key), 404, "job_not_found")


async def test_each_tenant_has_its_own_idempotency_keys(gateway: Gateway) -> None:
    own_key, other_key = [await key_for(gateway, tenant=name) for name in ("own", "other")]
    operator = await key_for(gateway)
    created = [
        (await post(gateway, key, idempotency_key="order-1")).json()["job_id"]
        for key in (own_key, other_key, operator)
    ]
    assert len(set(created)) == 3
    for key, job_id in zip((own_key, other_key, operator), created):
        again = await post(gateway, key, idempotency_key="order-1")
        assert again.json()["job_id"] == job_id
        assert again.header("idempotent-replayed") == "true"
    refused = await post(gateway, own_key, {**CHAT, "ttl_s": 5}, idempotency_key="order-1")
    check_problem(refused, 422, "idempotency_key_reused")
    keys = {key.decode() for key in await gateway.redis.keys("idempotency*")}
    assert keys == {
        *("idempotency:order-1", "idempotency.fingerprint:order-1"),
        *("idempotency.of:own:order-1", "idempotency.fingerprint.of:own:order-1"),
        *("idempotency.of:other:order-1", "idempotency.fingerprint.of:other:order-1"),
    }
    for text in ("of:other:order-1", "other:order-1"):  # the prefix of another tenant
        assert (await post(gateway, operator, idempotency_key=text)).json()["job_id"] not in created


async def test_a_forged_key_entry_does_not_reveal_a_job(gateway: Gateway) -> None:
    own_key, other_key = [await key_for(gateway, tenant=name) for name in ("own", "other")]
    job_id = (await post(gateway, other_key)).json()["job_id"]
    await gateway.redis.set(gateway.keys.idempotency("k", "own"), job_id, ex=60)
    answer = await post(gateway, own_key, idempotency_key="k", prefer="wait=5")
    check_problem(answer, 503, "store_corrupt")
    assert job_id.encode() not in answer.body


# -- limits ----------------------------------------------------------------------------------------


async def test_a_rate_limit_reports_when_to_retry(make: Make) -> None:
    gateway, local = make(auth="required"), make()
    key = await key_for(gateway, rate_per_min=1.0, burst=2)
    other = await key_for(gateway, rate_per_min=1.0, burst=2)
    for _ in range(2):
        assert (await post(gateway, key)).status == 202
    before = await gateway.snapshot()
    refused = await post(gateway, key)
    check_problem(refused, 429, "rate_limited")
    check_problem(await post(local, key), 429, "rate_limited")
    assert await gateway.snapshot() == before
    wait_ms = int(refused.header("retry-after-ms") or 0)
    assert 50_000 < wait_ms <= 60_000
    assert int(refused.header("retry-after") or 0) == -(-wait_ms // 1000)
    assert (await post(gateway, other)).status == 202
    assert (await local.client.post(CHAT)).status == 202


@partitioned
async def test_a_quota_is_freed_when_jobs_end_or_expire(gateway: Gateway) -> None:
    key = await key_for(gateway, max_jobs=2, tenant="own")
    first, second = [(await post(gateway, key)).json()["job_id"] for _ in range(2)]
    refused = await post(gateway, key)
    problem = check_problem(refused, 429, "quota_exceeded")
    assert "2 jobs" in problem["detail"]
    assert int(refused.header("retry-after") or 0) >= 1
    gateway.state.access.quotas._last_failed_at.clear()
    await gateway.finish(first)  # as any contract worker does it
    third = (await post(gateway, key)).json()["job_id"]
    check_problem(await post(gateway, key), 429, "quota_exceeded")
    gateway.state.access.quotas._last_failed_at.clear()
    keys = gateway.keys_of(third)
    await gateway.redis.delete(keys.job(second), keys.job(third))  # expired
    for _ in range(2):
        assert (await post(gateway, key)).status == 202


async def test_many_requests_at_a_full_quota_prune_it_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_for(gateway, max_jobs=1)
    job_id = (await post(gateway, key)).json()["job_id"]
    prunes = record_calls(monkeypatch, gateway.state.queue, "prune_quota")
    answers = await asyncio.gather(*(post(gateway, key) for _ in range(20)))
    assert {answer.status for answer in answers} == {429}
    assert len(prunes) == 1
    gateway.state.access.quotas._last_failed_at.clear()
    await gateway.finish(job_id)
    answers = await asyncio.gather(*(post(gateway, key) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [202] + [429] * 19


async def test_a_tenant_sees_only_its_own_running_jobs(gateway: Gateway) -> None:
    own_job, others, plain = (new_job_id(tenant_tail(name)) for name in ("a", "b", ""))
    running = [
        RunningJob(job_id=job_id, task="chat", attempt=1, since_ms=1)
        for job_id in (own_job, others, plain)
    ]
    beat = Heartbeat(consumer="w1", seen_ms=1, in_flight=3, running=running)
    await gateway.heartbeat(beat)
    for spec, seen in (
        ({"scopes": ("ui",), "tenant": "a"}, [own_job]),
        ({"scopes": ("metrics",), "tenant": "b"}, [others]),
        ({"scopes": ("metrics",)}, [own_job, others, plain]),
        ({"scopes": ("admin",), "tenant": "a"}, [own_job, others, plain]),
    ):
        answer = await call(gateway, "GET", "/v1/workers", await key_for(gateway, **spec))
        [worker] = answer.json()["workers"]
        assert [job["job_id"] for job in worker["running"]] == seen
        assert worker["in_flight"] == 3
