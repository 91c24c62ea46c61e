"""`GET /v1/status` and `GET /v1/workers`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from common.jobs.audit.report import AuditRecord, AuditReport, Violation, store_report
from common.jobs.audit.rules import Rule
from common.jobs.queue_stats import JobCounts, QueueReading
from common.observability.heartbeats import Heartbeat, ImagesReading
from common.process.host import HostReadings
from common.settings.gateway import GatewaySettings
from common.version import VERSION
from gateway.jobs.backpressure import PressureState, PressureView
from gateway.observability.metrics import routes as metrics_route
from gateway.observability.snapshot.redis import RedisFacts
from gateway.observability.status.checks import Level
from gateway.observability.status.status import Checks, StatusView, overall, run_checks
from tests.gateway.observability.metrics.test_metrics import beat, store, with_workers
from tests.support.gateway.harness import Gateway

pytestmark = pytest.mark.fakeredis_only

CALM = PressureView(PressureState.ACCEPTING, (), HostReadings())
HEALTHY = RedisFacts(
    rtt_s=0.001,
    clock_skew_s=0.0,
    queue=QueueReading(waiting=1, pending=2),
    oldest_age_s=0.5,
    scheduled=0,
    dead_letters=0,
    counts=JobCounts(12, 8, 1, 1),
    audits=AuditRecord(),
    workers=[beat("w1")],
    info={"used_memory": 10, "maxmemory": 100, "aof_enabled": 1, "redis_version": "8.4.0"},
)


async def read(gateway: Gateway, code: int = 200) -> dict[str, Any]:
    answer = await gateway.client.get("/v1/status")
    assert answer.status == code, answer
    assert answer.header("content-type") == "application/health+json"
    assert answer.header("cache-control") == "no-store"
    found: dict[str, Any] = answer.json()
    StatusView.model_validate(found)
    return found


def test_image_detectors_are_counted() -> None:
    readings = [ImagesReading(detector=name) for name in ("none", "centerface", "centerface")]
    workers = [beat(f"w{at}", images=reading) for at, reading in enumerate(readings)]
    found = run_checks(
        GatewaySettings(), replace(HEALTHY, workers=[*workers, beat("echo")]), 1.0, CALM
    )
    assert found.images[0].detectors == {"none": 1, "centerface": 2}


async def test_no_worker_is_a_warning(gateway: Gateway) -> None:
    found = await read(gateway)
    assert found["status"] == "warn"
    assert found["releaseId"] == VERSION
    assert found["uptime_s"] >= 0
    [workers] = found["checks"]["workers"]
    assert (workers["status"], workers["number"]) == ("warn", 0)
    assert "no worker takes jobs" in found["output"]
    [redis] = found["checks"]["redis"]
    assert redis["rtt_ms"] > 0


async def test_all_checks_are_present(gateway: Gateway) -> None:
    await with_workers(gateway)
    await gateway.create()
    found = await read(gateway)
    assert set(found["checks"]) == set(Checks.model_fields)
    checks = {name: checked[0] for name, checked in found["checks"].items() if checked}
    assert set(Checks.model_fields) - set(checks) == {"limits", "waiting"}
    assert (checks["workers"]["number"], checks["workers"]["busy"]) == (2, 4)
    assert checks["queue"]["depth"] == 1
    assert checks["queue"]["backlog_limit"] == 200
    assert checks["scheduled"]["number"] == checks["dead_letters"]["number"] == 0
    assert checks["pressure"]["state"] == "accepting"
    assert abs(checks["clock"]["skew_ms"]) < 1000
    assert (checks["audit"]["last_ts"], checks["audit"]["lost_total"]) == (0, 0)
    lost = (Violation("x", Rule.ACKED_WITHOUT_END, ""),)
    await store_report(gateway.redis, gateway.keys, AuditReport(5, 1, 1, lost, 1))
    [audit] = (await read(gateway))["checks"]["audit"]
    assert (audit["status"], audit["violations"], audit["lost_total"]) == ("warn", 1, 1)


async def test_unreachable_redis_fails(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*args: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(metrics_route, "read_facts", unreachable)
    found = await read(gateway, 503)
    assert found["status"] == "fail"
    assert found["checks"]["redis"][0]["status"] == "fail"
    assert found["checks"]["queue"][0] == {"status": "pass", "backlog_limit": 200, "drain_per_s": 0}


def run(
    facts: RedisFacts | None = HEALTHY, pressure: PressureView = CALM, **changes: Any
) -> tuple[Level, str | None, Checks]:
    if facts is not None:
        facts = replace(facts, **changes)
    checks = run_checks(GatewaySettings(), facts, 2.0, pressure)
    return *overall(checks), checks


def test_everything_passes() -> None:
    level, output, checks = run()
    assert (level, output) == (Level.PASS, None)
    assert checks.redis[0].redis_version == "8.4.0"
    assert checks.redis[0].memory_ratio == 0.1


HOT = PressureView(PressureState.REFUSING, ("gpu is at 99 °C",), HostReadings(temperature_c=99.0))
WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "memory": ({"info": {"used_memory": 81, "maxmemory": 100}}, "redis: 81%"),
    "of the machine": ({"info": {"used_memory": 9, "total_system_memory": 10}}, "redis: 90%"),
    "no file": ({"info": {"aof_enabled": 0}}, "no append-only file"),
    "disk": ({"info": {"aof_enabled": 1, "aof_last_write_status": "err"}}, "is the disk full"),
    "no workers": ({"workers": []}, "no worker takes jobs"),
    "all draining": ({"workers": [beat("w", draining=True)]}, "no worker takes jobs"),
    "holding": ({"workers": [beat("w", holding=True, holding_why="hot")]}, "w takes no jobs: hot"),
    "backlog": ({"queue": QueueReading(waiting=150, pending=10)}, "160 of 200"),
    "old": ({"oldest_age_s": 61.0}, "waited for 61 s"),
    "dead letters": ({"dead_letters": 2}, "2 dead letters to review"),
    "clock": ({"clock_skew_s": -2.0}, "-2.0 s off"),
    "audit": ({"audits": AuditRecord(last_violations=3)}, "3 violations"),
    "pressure": ({"pressure": HOT}, "pressure: gpu is at 99"),
}


def test_each_problem_is_a_warning() -> None:
    for name, (changes, expected) in WARNINGS.items():
        level, output, _ = run(**changes)
        assert level is Level.WARN, name
        assert output is not None
        assert expected in output, name
    level, output, _ = run(None)
    assert (level, output) == (Level.FAIL, "redis: Redis does not answer"), "only Redis can fail"
    level, _, checks = run(
        queue=QueueReading(), oldest_age_s=None, audits=None, info={}, dead_letters=None
    )
    assert level is Level.PASS, "unknown values are no warning"
    assert checks.redis[0].memory_ratio is None


# -- workers -------------------------------------------------------------------------------------


async def test_workers_are_listed(gateway: Gateway) -> None:
    answer = await gateway.client.get("/v1/workers")
    assert (answer.status, answer.json()) == (200, {"workers": []})
    running = [{"job_id": "j", "task": "chat", "attempt": 1, "since_ms": 5}]
    await store(gateway, beat("b"), beat("a", running=running))
    await gateway.redis.zadd(gateway.keys.workers, {"gone": 9})
    answer = await gateway.client.get("/v1/workers")
    assert answer.status == 200
    listed = answer.json()["workers"]
    assert [worker["consumer"] for worker in listed] == ["a", "b"]
    assert listed[0]["running"] == running
    assert abs(listed[0]["heartbeat_age_s"] - time.time()) < 60, "it was seen in 1970"
    assert listed[0]["tally"]["chat"]["started"] == 7
    assert TypeAdapter(Heartbeat).validate_python(listed[1]).to_json() == beat("b").to_json()
