"""Tenants: another tenant's jobs look like missing ones, on every route, byte for byte."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from common.access.record import tenant_tail
from common.observability.heartbeats import Heartbeat, RunningJob
from gateway.jobs.ids import new_job_id
from tests.gateway.access_kit import bearer, call, key_for, post
from tests.gateway.asgi import Answer
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem
from tests.gateway.dead_letters import put

#: Every request about a job: method, path, headers, body.
ROUTES: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    "read": ("GET", "", {}, b""),
    "read and wait": ("GET", "", {"prefer": "wait=5"}, b""),
    "read what changed": ("GET", "", {"if-none-match": '"x"'}, b""),
    "delete": ("DELETE", "", {}, b""),
    "cancel": ("POST", "/cancel", {}, b""),
    "cancel for a reason": (
        "POST",
        "/cancel",
        {"content-type": "application/json"},
        b'{"reason":"x"}',
    ),
    "cancel and wait": ("POST", "/cancel", {"prefer": "wait=5"}, b""),
    "watch": ("GET", "/events", {}, b""),
    "watch on": ("GET", "/events", {"last-event-id": "1-0"}, b""),
    "watch lines": ("GET", "/events", {"accept": "application/x-ndjson"}, b""),
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
    ids = {new_job_id(tail) for _ in range(200)}
    assert len(ids) == 200
    for job_id in ids:
        assert uuid.UUID(job_id).version == 4
        assert str(uuid.UUID(job_id)) == job_id
        assert job_id.endswith(tail)
    assert not any(new_job_id().endswith(tail) for _ in range(200))


@pytest.mark.parametrize("name", ROUTES)
async def test_a_job_of_another_tenant_looks_like_a_missing_one(
    gateway: Gateway, name: str
) -> None:
    own_key = await key_for(gateway, tenant="own")
    other_key = await key_for(gateway, tenant="other")
    for status in EVERY_STATUS:
        job_id = (await post(gateway, other_key)).json()["job_id"]
        await gateway.redis.hset(gateway.keys.job(job_id), "status", status)  # type: ignore[misc]
        before = await gateway.snapshot()
        missing = new_job_id(tenant_tail("own"))
        refused = await ask(gateway, name, job_id, own_key)
        check_problem(refused, 404, "job_not_found")
        absent = await ask(gateway, name, missing, own_key)
        assert comparable(refused, job_id) == comparable(absent, missing)
        assert await gateway.snapshot() == before


async def test_every_key_of_a_tenant_can_use_its_jobs(gateway: Gateway) -> None:
    first, second = [await key_for(gateway, tenant="own") for _ in range(2)]
    job_id = (await post(gateway, first)).json()["job_id"]
    for key in (first, second):
        assert (await ask(gateway, "read", job_id, key)).json()["job_id"] == job_id
    await gateway.finish(job_id)
    stream = await gateway.client.watch(job_id, bearer(second))
    assert [block.event for block in await stream.rest()] == ["hello", "queued", "done"]
    assert (await ask(gateway, "cancel", job_id, second)).status == 200


async def test_tenants_do_not_see_jobs_without_a_tenant(gateway: Gateway) -> None:
    operator = await key_for(gateway)
    own_key = await key_for(gateway, tenant="own")
    job_id = (await post(gateway, operator)).json()["job_id"]
    check_problem(await ask(gateway, "read", job_id, own_key), 404, "job_not_found")


@pytest.mark.parametrize(
    "spec", [{}, {"scopes": ("admin",), "tenant": "own"}], ids=["no tenant", "admin"]
)
async def test_operators_see_all_jobs(gateway: Gateway, spec: dict[str, Any]) -> None:
    operator = await key_for(gateway, **spec)
    other_key = await key_for(gateway, tenant="other")
    job_id = (await post(gateway, other_key)).json()["job_id"]
    assert (await ask(gateway, "read", job_id, operator)).status == 200
    assert (await ask(gateway, "cancel", job_id, operator)).status == 200


async def test_requests_on_loopback_see_all_jobs(make: Make) -> None:
    gateway = make()
    key = await key_for(gateway, tenant="other")
    job_id = (await post(gateway, key)).json()["job_id"]
    assert job_id.endswith(tenant_tail("other"))
    assert (await call(gateway, "GET", f"/v1/jobs/{job_id}")).status == 200


async def test_a_job_of_an_admin_belongs_to_its_tenant(gateway: Gateway) -> None:
    admin = await key_for(gateway, scopes=("admin",), tenant="own")
    own_key = await key_for(gateway, tenant="own")
    job_id = (await post(gateway, admin)).json()["job_id"]
    assert (await ask(gateway, "read", job_id, own_key)).status == 200


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
    other = {**CHAT, "ttl_s": 5}
    refused = await post(gateway, own_key, other, idempotency_key="order-1")
    check_problem(refused, 422, "idempotency_key_reused")
    keys = {key.decode() for key in await gateway.redis.keys("idempotency*")}
    assert keys == {
        *("idempotency:order-1", "idempotency.fingerprint:order-1"),
        *("idempotency.of:own:order-1", "idempotency.fingerprint.of:own:order-1"),
        *("idempotency.of:other:order-1", "idempotency.fingerprint.of:other:order-1"),
    }


async def test_no_idempotency_key_reaches_those_of_another_tenant(gateway: Gateway) -> None:
    """Not even if it contains the prefix of another tenant."""
    other_key = await key_for(gateway, tenant="other")
    own_key = await key_for(gateway, tenant="our")
    operator = await key_for(gateway)
    created = (await post(gateway, other_key, idempotency_key="k")).json()["job_id"]
    for key, text in ((own_key, "s:k"), (operator, "of:other:k"), (operator, "other:k")):
        answer = await post(gateway, key, idempotency_key=text)
        assert answer.json()["job_id"] != created


async def test_a_forged_key_entry_does_not_reveal_a_job(gateway: Gateway) -> None:
    own_key, other_key = [await key_for(gateway, tenant=name) for name in ("own", "other")]
    job_id = (await post(gateway, other_key)).json()["job_id"]
    await gateway.redis.set(gateway.keys.idempotency("k", "own"), job_id, ex=60)
    answer = await post(gateway, own_key, idempotency_key="k", prefer="wait=5")
    check_problem(answer, 503, "store_corrupt")
    assert job_id.encode() not in answer.body


async def test_a_redriven_job_keeps_its_tenant(gateway: Gateway) -> None:
    own_key, other_key = [await key_for(gateway, tenant=name) for name in ("own", "other")]
    admin = await key_for(gateway, scopes=("admin",))
    job_id = (await post(gateway, own_key)).json()["job_id"]
    message = {"job_id": job_id, "task": "chat", "payload": '{"n":1}'}
    fields = {"job_id": job_id, "fields": json.dumps(message), "reason": "attempts_exhausted"}
    dead_letter_id = await put(
        gateway, {name.encode(): text.encode() for name, text in fields.items()}
    )
    answer = await call(gateway, "POST", f"/v1/dlq/{dead_letter_id}/redrive", admin)
    redriven = answer.json()["job_id"]
    assert redriven != job_id
    assert (await ask(gateway, "read", redriven, own_key)).json()["status"] == "queued"
    check_problem(await ask(gateway, "read", redriven, other_key), 404, "job_not_found")
    again = await call(gateway, "POST", f"/v1/dlq/{dead_letter_id}/redrive", admin)
    assert again.json()["job_id"] == redriven  # the dead letter is deleted, its job is not


async def test_a_tenant_cannot_use_administrative_endpoints(gateway: Gateway) -> None:
    own_key = await key_for(gateway, tenant="own")
    for method, path in (("GET", "/v1/dlq"), ("GET", "/v1/audit"), ("DELETE", "/v1/dlq?all=true")):
        check_problem(await call(gateway, method, path, own_key), 403, "insufficient_scope")


# -- limits ----------------------------------------------------------------------------------------


async def test_a_rate_limit_reports_when_to_retry(gateway: Gateway) -> None:
    key = await key_for(gateway, rate_per_min=1.0, burst=2)
    other = await key_for(gateway, rate_per_min=1.0, burst=2)
    for _ in range(2):
        assert (await post(gateway, key)).status == 202
    before = await gateway.snapshot()
    refused = await post(gateway, key)
    check_problem(refused, 429, "rate_limited")
    assert await gateway.snapshot() == before
    wait_ms = int(refused.header("retry-after-ms") or 0)
    assert 50_000 < wait_ms <= 60_000
    assert int(refused.header("retry-after") or 0) == -(-wait_ms // 1000)
    assert (await post(gateway, other)).status == 202
    rate = gateway.state.access.keys.keys.rate(key.split("_")[1])
    due = int(await gateway.redis.get(rate) or 0)
    await gateway.redis.set(rate, str(due - wait_ms * 1000))  # time passes
    assert (await post(gateway, key)).status == 202


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
    await gateway.redis.delete(gateway.keys.job(second), gateway.keys.job(third))  # expired
    for _ in range(2):
        assert (await post(gateway, key)).status == 202


async def test_many_requests_at_a_full_quota_prune_it_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_for(gateway, max_jobs=1)
    job_id = (await post(gateway, key)).json()["job_id"]
    prunes = 0
    settle = gateway.state.queue.prune_quota

    async def counting(active_key: str) -> int:
        nonlocal prunes
        prunes += 1
        await asyncio.sleep(0.05)
        return await settle(active_key)

    monkeypatch.setattr(gateway.state.queue, "prune_quota", counting)
    answers = await asyncio.gather(*(post(gateway, key) for _ in range(20)))
    assert {answer.status for answer in answers} == {429}
    assert prunes == 1
    gateway.state.access.quotas._last_failed_at.clear()
    await gateway.finish(job_id)
    answers = await asyncio.gather(*(post(gateway, key) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [202] + [429] * 19


async def test_a_replay_does_not_count_for_limits(gateway: Gateway) -> None:
    key = await key_for(gateway, rate_per_min=1.0, burst=1, max_jobs=1)
    created = await post(gateway, key, idempotency_key="k")
    for _ in range(3):
        again = await post(gateway, key, idempotency_key="k")
        assert (again.status, again.json()) == (202, created.json())
    check_problem(await post(gateway, key, idempotency_key="k2"), 429, "rate_limited")


async def test_limits_hold_on_loopback_too(make: Make) -> None:
    gateway = make()
    key = await key_for(gateway, rate_per_min=1.0, burst=1)
    assert (await post(gateway, key)).status == 202
    check_problem(await post(gateway, key), 429, "rate_limited")
    assert (await gateway.client.post(CHAT)).status == 202


async def test_a_tenant_sees_only_its_own_running_jobs(gateway: Gateway) -> None:
    own_job, others, plain = (new_job_id(tenant_tail(name)) for name in ("a", "b", ""))
    running = [
        RunningJob(job_id=job_id, task="chat", attempt=1, since_ms=1)
        for job_id in (own_job, others, plain)
    ]
    beat = Heartbeat(consumer="w1", seen_ms=1, in_flight=3, running=running)
    await gateway.redis.zadd(gateway.keys.workers, {beat.consumer: beat.seen_ms})
    await gateway.redis.set(gateway.keys.worker(beat.consumer), beat.to_json())
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
