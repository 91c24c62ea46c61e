"""`/v1/queues`: list, pause and resume."""

from __future__ import annotations

import time

import pytest
from pydantic import TypeAdapter

from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.queue import paused_key
from sluice.common.observability.heartbeats import Heartbeat
from tests.support.gateway.access import bearer, call, id_of, key_for
from tests.support.gateway.asgi import JSON
from tests.support.gateway.harness import Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

QUEUES = "/v1/queues"
PAUSE, RESUME = f"{QUEUES}/jobs:stream/pause", f"{QUEUES}/jobs:stream/resume"


async def test_the_job_queue_is_described(gateway: Gateway) -> None:
    now_ms = int(time.time() * 1000)
    await gateway.create()
    await gateway.create({"task": "chat", "payload": {}, "delay_s": 600})
    await gateway.redis.xadd(gateway.keys.dead_letters, {"reason": "x"})
    waiting = {"chat": {"number": 2, "oldest_ms": now_ms - 5000}, "nonsense": {"number": 1}}
    beat = TypeAdapter(Heartbeat).validate_python(
        {"consumer": "w", "seen_ms": now_ms, "limits": {"waiting": waiting}}
    )
    await gateway.heartbeat(beat)
    answer = await gateway.client.get(QUEUES)
    assert answer.status == 200
    assert answer.header("cache-control") == "no-store"
    [queue] = answer.json()["queues"]
    waiting_now = queue.pop("waiting")
    assert waiting_now["chat"]["number"] == 2
    assert 4000 < waiting_now["chat"]["oldest_age_ms"] < 60_000
    assert set(waiting_now) == {"chat"}
    assert 0 <= queue.pop("oldest_age_ms") < 60_000
    assert queue == {
        "name": "jobs:stream",
        "depth": 1,
        "pending": 0,
        "scheduled": 1,
        "dead_letters": 1,
        "drain_rate_per_s": 0.0,
        "backlog_limit": 200,
        "paused": None,
    }
    assert answer.json()["bullmq"] == []


async def test_bullmq_queues_are_listed_and_cannot_be_paused(make: Make) -> None:
    gateway = make(bullmq_add_queues="mail,print")
    await gateway.redis.rpush("bull:mail:wait", "1", "2")
    await gateway.redis.zadd("bull:mail:failed", {"3": 1})
    found = (await gateway.client.get(QUEUES)).json()["bullmq"]
    assert [queue["name"] for queue in found] == ["mail", "print"]
    assert {state: n for state, n in found[0]["counts"].items() if n} == {"wait": 2, "failed": 1}
    for name, code in (("mail", "queue_not_pausable"), ("fax", "queue_not_found")):
        for action in ("pause", "resume"):
            answer = await gateway.client.send("POST", f"{QUEUES}/{name}/{action}")
            check_problem(answer, 409 if name == "mail" else 404, code)


@partitioned
async def test_the_queue_is_paused_and_resumed(gateway: Gateway) -> None:
    before = int(time.time() * 1000)
    answer = await gateway.client.send("POST", PAUSE, JSON, b'{"why":"tea"}')
    assert answer.status == 200
    pause = answer.json()["paused"]
    assert (pause["by"], pause["why"]) == ("local", "tea")
    assert before - 1 <= pause["since_ms"] <= time.time() * 1000
    [queue] = (await gateway.client.get(QUEUES)).json()["queues"]
    assert queue["paused"] == pause
    again = await gateway.client.send("POST", PAUSE)
    assert again.json() == answer.json(), "the first pause is kept"
    status = (await gateway.client.get("/v1/status")).json()
    [check] = status["checks"]["queue"]
    assert (check["status"], check["paused"]) == ("warn", True)
    assert check["output"] == "paused by local: tea; accepted jobs wait"
    assert b"\ngw_queue_paused 1.0\n" in (await gateway.client.get("/metrics")).body
    await gateway.create()
    for _ in range(2):
        answer = await gateway.client.send("POST", f"{QUEUES}/jobs%3Astream/resume")
        assert answer.json() == {"name": "jobs:stream", "paused": None}
    [queue] = (await gateway.client.get(QUEUES)).json()["queues"]
    assert queue["paused"] is None
    assert queue["depth"] == 1
    assert b"\ngw_queue_paused 0.0\n" in (await gateway.client.get("/metrics")).body


async def test_a_rejected_pause_changes_nothing(gateway: Gateway) -> None:
    before = await gateway.snapshot()
    for headers, body, status in (
        (JSON, b"{", 400),
        ({"content-type": "text/plain"}, b"{}", 415),
        (JSON, b"[]", 422),
        (JSON, b'{"why":7}', 422),
        (JSON, b'{"reason":"x"}', 422),
        (JSON, b'{"why":"' + b"x" * 501 + b'"}', 422),
    ):
        check_problem(await gateway.client.send("POST", PAUSE, headers, body), status)
    assert await gateway.snapshot() == before
    assert await gateway.redis.xlen(AccessKeys().audit_log) == 0


async def test_pausing_requires_admin_and_is_recorded(strict: Gateway) -> None:
    ui = await key_for(strict, scopes=frozenset({"ui", "metrics", "jobs:read", "jobs:write"}))
    admin = await key_for(strict, scopes=frozenset({"admin"}))
    reader = await key_for(strict, scopes=frozenset({"jobs:read"}))
    assert (await call(strict, "GET", QUEUES, ui)).status == 200
    assert (await call(strict, "GET", QUEUES, reader)).status == 403
    for path in (PAUSE, RESUME):
        check_problem(await call(strict, "POST", path, ui), 403, "insufficient_scope")
    assert await strict.redis.exists(paused_key(strict.keys.queue)) == 0
    answer = await strict.client.send("POST", PAUSE, bearer(admin))
    assert answer.json()["paused"]["by"] == id_of(admin)
    await call(strict, "POST", RESUME, admin)
    items = (await call(strict, "GET", "/v1/trail", admin)).json()["items"]
    assert [(item["action"], item["target"], item["who"]) for item in items] == [
        ("queue.resume", "jobs:stream", id_of(admin)),
        ("queue.pause", "jobs:stream", id_of(admin)),
    ]


async def test_paused_workers_do_not_make_the_gateway_refuse_jobs(gateway: Gateway) -> None:
    """Paused workers hold as under pressure, but jobs are accepted and wait."""
    pressure = gateway.state.pressure
    for paused in (True, False):
        members = {"consumer": "w", "seen_ms": 1, "holding": True, "paused": paused}
        beat = TypeAdapter(Heartbeat).validate_python({**members, "holding_why": "why"})
        await gateway.heartbeat(beat)
        await pressure.run_once()
        assert pressure.refusing is not paused
    metrics = (await gateway.client.get("/metrics")).body
    assert b'gw_worker_holding{worker="w"} 1.0' in metrics
