"""`GET /v1/status` and `GET /v1/workers`: checks, model servers, and limited tasks."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from sluice.common.access.record import tenant_tail
from sluice.common.contracts.workers import FIRST_TOKEN_BOUNDS, ModelState
from sluice.common.jobs.audit.report import AuditRecord, AuditReport, Violation, store_report
from sluice.common.jobs.audit.rules import Rule
from sluice.common.jobs.queue_stats import JobCounts, QueueReading
from sluice.common.observability.heartbeats import (
    Heartbeat,
    Histogram,
    ImagesReading,
    LimitReading,
    LimitsReading,
    ModelReading,
    WaitingReading,
)
from sluice.common.process.host import HostReadings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.version import VERSION
from sluice.gateway.jobs.backpressure import PressureState, PressureView
from sluice.gateway.jobs.ids import new_job_id
from sluice.gateway.observability.metrics import routes as metrics_route
from sluice.gateway.observability.snapshot.limits import MOST_HOLDERS
from sluice.gateway.observability.snapshot.redis import RedisFacts
from sluice.gateway.observability.status.checks import Level
from sluice.gateway.observability.status.status import (
    Checks,
    ModelCheck,
    StatusView,
    overall,
    run_checks,
)
from tests.gateway.observability.metrics.test_metrics import beat, scrape, with_workers
from tests.support.gateway.access import call, key_for
from tests.support.gateway.faults import raising
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
    monkeypatch.setattr(metrics_route, "read_facts", raising(ConnectionError("gone")))
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
    level, output, checks = run()
    assert (level, output) == (Level.PASS, None)
    assert checks.redis[0].redis_version == "8.4.0"
    assert checks.redis[0].memory_ratio == 0.1
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
    names = ("none", "centerface", "centerface")
    workers = [beat(f"w{at}", images=ImagesReading(detector=name)) for at, name in enumerate(names)]
    _, _, checks = run(workers=[*workers, beat("echo")])
    assert checks.images[0].detectors == {"none": 1, "centerface": 2}


# -- workers -------------------------------------------------------------------------------------


async def test_workers_are_listed(gateway: Gateway) -> None:
    answer = await gateway.client.get("/v1/workers")
    assert (answer.status, answer.json()) == (200, {"workers": []})
    running = [{"job_id": "j", "task": "chat", "attempt": 1, "since_ms": 5}]
    await gateway.heartbeat(beat("b"), beat("a", running=running))
    await gateway.redis.zadd(gateway.keys.workers, {"gone": 9})
    answer = await gateway.client.get("/v1/workers")
    assert answer.status == 200
    listed = answer.json()["workers"]
    assert [worker["consumer"] for worker in listed] == ["a", "b"]
    assert listed[0]["running"] == running
    assert abs(listed[0]["heartbeat_age_s"] - time.time()) < 60, "it was seen in 1970"
    assert listed[0]["tally"]["chat"]["started"] == 7
    assert TypeAdapter(Heartbeat).validate_python(listed[1]).to_json() == beat("b").to_json()


def model(state: ModelState = ModelState.READY, reason: str = "", **more: Any) -> ModelReading:
    return ModelReading(state=state, reason=reason, url="http://box:8090", slots=2, **more)


def check(*readings: ModelReading | None) -> tuple[ModelCheck, Level]:
    workers = [beat(f"w{n}", model=reading) for n, reading in enumerate(readings, 1)]
    checks = run_checks(GatewaySettings(), replace(HEALTHY, workers=workers), 1.0, CALM)
    return checks.model[0], overall(checks)[0]


def test_ready_model_server_passes() -> None:
    found, level = check(model(busy=1), model(busy=2), None, model(ModelState.ABSENT))
    assert (found.number, found.ready, found.busy, found.slots) == (2, 2, 3, 4)
    assert (found.status, found.output, level) == (Level.PASS, None, Level.PASS)
    without = run_checks(GatewaySettings(), None, 1.0, CALM).model[0]
    assert (without.status, without.number) == (Level.PASS, 0)


def test_a_model_server_that_is_not_ready_is_a_warning() -> None:
    for state in (ModelState.DOWN, ModelState.LOADING):
        found, level = check(model(state, "Connection refused"), model())
        assert (found.number, found.ready, found.slots) == (2, 1, 2)
        assert (found.status, level) == (Level.WARN, Level.WARN)
        assert found.output == f"w1 ({state.value}): Connection refused"
    down = model(ModelState.DOWN, "Connection refused")
    found, _ = check(down, down, down, model(ModelState.LOADING))
    expected = "w1 and 2 more (down): Connection refused; w4 (loading): no answer"
    assert found.output == expected, "a server of many workers is listed once"
    found, _ = check(model(reason="401: who are you?; is MODEL_API_KEY right?"))
    assert found.status is Level.WARN
    assert found.output == "w1 (ready): 401: who are you?; is MODEL_API_KEY right?"


async def test_model_values_are_in_status_and_metrics(gateway: Gateway) -> None:
    counts = [0] * len(FIRST_TOKEN_BOUNDS) + [2]
    tokens = {"prompt_tokens": 50, "completion_tokens": 20}
    first_token = Histogram(counts=counts, sum=900.0)
    busy = model(busy=1, name="small", answers=7, failures=1, first_token=first_token, **tokens)
    down = model(ModelState.DOWN, "Connection refused")
    await gateway.heartbeat(
        beat("w1", model=busy), beat("w2", model=down), beat("w3"),
        beat("w4", model=model(ModelState.ABSENT)),
    )  # fmt: skip
    listed = (await gateway.client.get("/v1/workers")).json()["workers"]
    assert listed[0]["model"]["name"] == "small"
    assert listed[1]["model"]["reason"] == "Connection refused"
    assert listed[2].get("model") is None
    found = await scrape(gateway)
    assert found.labels("gw_model_up") == [{"worker": "w1"}, {"worker": "w2"}]
    assert found.value("gw_model_up", worker="w2") == 0
    numbers = {"up": 1, "slots": 2, "busy": 1, "answers_total": 7, "failures_total": 1}
    for name, value in {**numbers, "first_token_seconds_count": 2}.items():
        assert found.value(f"gw_model_{name}", worker="w1") == value, name
    for kind, tokens in (("prompt", 50), ("completion", 20)):
        assert found.value("gw_model_tokens_total", worker="w1", kind=kind) == tokens


LIMITED = "chat+plan+code"


def limited(name: str, seen_ms: int | None = None, **changes: Any) -> Heartbeat:
    limits = LimitsReading(across=[LimitReading(name=LIMITED, places=2)], **changes)
    now_ms = int(time.time() * 1000)
    return replace(beat(name), limits=limits, seen_ms=now_ms if seen_ms is None else seen_ms)


async def hold(gateway: Gateway, *job_ids: str, name: str = LIMITED, ms: int = 30_000) -> int:
    until_ms = int(time.time() * 1000) + ms
    await gateway.redis.zadd(gateway.keys.running(name), dict.fromkeys(job_ids, until_ms))
    return until_ms


async def checks_of(gateway: Gateway, key: str | None = None) -> dict[str, Any]:
    answer = await call(gateway, "GET", "/v1/status", key)
    assert answer.status == 200, answer
    StatusView.model_validate(answer.json())
    return answer.json()["checks"]


async def test_limit_lists_its_holders(gateway: Gateway) -> None:
    await gateway.heartbeat(beat("w0"))
    checks = await checks_of(gateway)
    assert (checks["limits"], checks["waiting"]) == ([], [])
    older = LimitsReading(across=[LimitReading(name=LIMITED, places=9)])
    await gateway.heartbeat(replace(limited("w2", seen_ms=1), limits=older), limited("w1"))
    until_ms = await hold(gateway, "one", "two")
    await hold(gateway, "expired", ms=-1000)
    [limit] = (await checks_of(gateway))["limits"]
    holders = [{"job_id": name, "until_ms": until_ms} for name in ("one", "two")]
    known = {"status": "pass", "name": LIMITED, "places": 2, "running": 2}
    assert limit == {**known, "holders": holders}
    found = await scrape(gateway)
    assert found.value("gw_task_limit_places", limit=LIMITED) == 2
    assert found.value("gw_task_limit_running", limit=LIMITED) == 2
    await hold(gateway, *(f"job-{number}" for number in range(MOST_HOLDERS + 3)))
    [limit] = (await checks_of(gateway))["limits"]
    assert (limit["running"], len(limit["holders"])) == (MOST_HOLDERS + 5, MOST_HOLDERS)
    await gateway.redis.delete(gateway.keys.running(LIMITED))
    await gateway.redis.zadd(gateway.keys.running(LIMITED), {b"\xff": "+inf"})
    [limit] = (await checks_of(gateway))["limits"]
    assert limit["running"] == 1
    await gateway.redis.set(gateway.keys.running(LIMITED), "a string")
    [limit] = (await checks_of(gateway))["limits"]
    assert (limit.get("running"), limit["holders"]) == (None, [])


async def test_tenant_sees_only_its_own_holders(strict: Gateway) -> None:
    await strict.heartbeat(limited("w1"))
    own_job, others = new_job_id(tenant_tail("shop")), new_job_id(tenant_tail("bank"))
    await hold(strict, own_job, others, new_job_id())
    shop = await key_for(strict, tenant="shop", scopes=frozenset({"jobs:read"}))
    [limit] = (await checks_of(strict, shop))["limits"]
    assert [holder["job_id"] for holder in limit["holders"]] == [own_job]
    assert limit["running"] == 3
    admin = await key_for(strict, scopes=frozenset({"admin"}))
    [limit] = (await checks_of(strict, admin))["limits"]
    assert len(limit["holders"]) == 3


async def test_waiting_tasks_and_closed_workers_are_listed(gateway: Gateway) -> None:
    now_ms = int(time.time() * 1000)
    waiting = {"chat": WaitingReading(number=12, oldest_ms=now_ms - 90_000)}
    closed = dict.fromkeys(("chat", "plan"), "the model server does not answer")
    await gateway.heartbeat(limited("w1", closed=closed, waiting=waiting))
    await gateway.heartbeat(limited("w2", seen_ms=now_ms - 60_000))
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
    waiting = {
        "chat": WaitingReading(number=2, oldest_ms=now_ms - 5000),
        "embed": WaitingReading(number=1),
        "unknown task": WaitingReading(number=1),
    }
    await gateway.heartbeat(limited("w1", waiting=waiting))
    chat, embed = (await checks_of(gateway))["waiting"]
    assert (chat["status"], embed["status"]) == ("pass", "pass"), "a short wait is no warning"
    assert "oldest_age_s" not in embed
