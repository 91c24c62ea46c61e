"""Limited tasks in `/v1/status` and `/metrics`: holders of slots, waiting tasks and reasons."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from common.access.record import tenant_tail
from common.observability.heartbeats import Heartbeat, LimitReading, LimitsReading, WaitingReading
from gateway.jobs.ids import new_job_id
from gateway.observability.snapshot.limits import MOST_HOLDERS
from gateway.observability.status.status import StatusView
from tests.gateway.observability.metrics.test_metrics import beat, scrape, store
from tests.support.gateway.access import call, key_for
from tests.support.gateway.harness import Gateway, Make

pytestmark = pytest.mark.fakeredis_only

GROUP = "chat+plan+code"


def limited(name: str, seen_ms: int | None = None, **changes: Any) -> Heartbeat:
    limits = LimitsReading(across=[LimitReading(name=GROUP, places=2)], **changes)
    now_ms = int(time.time() * 1000)
    seen = {"seen_ms": now_ms if seen_ms is None else seen_ms}
    return replace(beat(name), limits=limits, **seen)


async def hold(gateway: Gateway, *job_ids: str, name: str = GROUP, ms: int = 30_000) -> int:
    until_ms = int(time.time() * 1000) + ms
    await gateway.redis.zadd(gateway.keys.running(name), dict.fromkeys(job_ids, until_ms))
    return until_ms


async def read(gateway: Gateway, key: str | None = None) -> dict[str, Any]:
    answer = await call(gateway, "GET", "/v1/status", key)
    assert answer.status == 200, answer
    StatusView.model_validate(answer.json())
    checks: dict[str, Any] = answer.json()["checks"]
    return checks


async def test_limit_lists_its_holders(gateway: Gateway) -> None:
    await store(gateway, beat("w0"))
    checks = await read(gateway)
    assert (checks["limits"], checks["waiting"]) == ([], [])
    older = LimitsReading(across=[LimitReading(name=GROUP, places=9)])
    await store(gateway, replace(limited("w2", seen_ms=1), limits=older), limited("w1"))
    until_ms = await hold(gateway, "one", "two")
    await hold(gateway, "expired", ms=-1000)
    [limit] = (await read(gateway))["limits"]
    assert limit == {
        "status": "pass",
        "name": GROUP,
        "places": 2,
        "running": 2,
        "holders": [
            {"job_id": "one", "until_ms": until_ms},
            {"job_id": "two", "until_ms": until_ms},
        ],
    }
    found = await scrape(gateway)
    assert found.value("gw_task_limit_places", limit=GROUP) == 2
    assert found.value("gw_task_limit_running", limit=GROUP) == 2
    await hold(gateway, *(f"job-{number}" for number in range(MOST_HOLDERS + 3)))
    [limit] = (await read(gateway))["limits"]
    assert (limit["running"], len(limit["holders"])) == (MOST_HOLDERS + 5, MOST_HOLDERS)


async def test_invalid_holders_are_tolerated(gateway: Gateway) -> None:
    await store(gateway, limited("w1"))
    await gateway.redis.zadd(gateway.keys.running(GROUP), {b"\xff": "+inf"})
    [limit] = (await read(gateway))["limits"]
    assert limit["running"] == 1
    await gateway.redis.set(gateway.keys.running(GROUP), "a string")
    [limit] = (await read(gateway))["limits"]
    assert (limit.get("running"), limit["holders"]) == (None, [])


async def test_tenant_sees_only_its_own_holders(make: Make) -> None:
    gateway = make(auth="required")
    await store(gateway, limited("w1"))
    own_job, others = new_job_id(tenant_tail("shop")), new_job_id(tenant_tail("bank"))
    await hold(gateway, own_job, others, new_job_id())
    shop = await key_for(gateway, tenant="shop", scopes=frozenset({"jobs:read"}))
    [limit] = (await read(gateway, shop))["limits"]
    assert [holder["job_id"] for holder in limit["holders"]] == [own_job]
    assert limit["running"] == 3
    admin = await key_for(gateway, scopes=frozenset({"admin"}))
    [limit] = (await read(gateway, admin))["limits"]
    assert len(limit["holders"]) == 3


async def test_waiting_tasks_and_closed_workers_are_listed(gateway: Gateway) -> None:
    now_ms = int(time.time() * 1000)
    waiting = {"chat": WaitingReading(number=12, oldest_ms=now_ms - 90_000)}
    closed = dict.fromkeys(("chat", "plan"), "the model server does not answer")
    await store(gateway, limited("w1", closed=closed, waiting=waiting))
    await store(gateway, limited("w2", seen_ms=now_ms - 60_000))
    answer = (await call(gateway, "GET", "/v1/status")).json()
    chat, plan = answer["checks"]["waiting"]
    assert (chat["task"], chat["number"], chat["status"]) == ("chat", 12, "warn")
    assert 89 < chat["oldest_age_s"] < 120
    assert chat["closed"] == {"w1": "the model server does not answer"}
    assert "12 chat jobs wait for a slot" in answer["output"]
    assert "w1: the model server does not answer" in answer["output"]
    assert (plan["task"], plan["number"], plan["status"]) == ("plan", 0, "pass")
    found = await scrape(gateway)
    assert found.value("gw_task_waiting", task="chat") == 12
    assert 89 < found.value("gw_task_waiting_oldest_age_seconds", task="chat") < 120
    assert found.value("gw_worker_task_closed", worker="w1", task="plan") == 1


async def test_short_wait_is_no_warning(gateway: Gateway) -> None:
    now_ms = int(time.time() * 1000)
    waiting = {
        "chat": WaitingReading(number=2, oldest_ms=now_ms - 5000),
        "embed": WaitingReading(number=1),
        "unknown task": WaitingReading(number=1),
    }
    await store(gateway, limited("w1", waiting=waiting))
    chat, embed = (await read(gateway))["waiting"]
    assert (chat["status"], embed["status"]) == ("pass", "pass")
    assert "oldest_age_s" not in embed
