"""Checks of the queue and its workers, on real Redis servers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from common.contracts.jobs import AuditField, DeadLetterField, JobKeys
from common.jobs.audit.report import AuditReport, Violation, store_report
from common.jobs.audit.rules import Rule
from common.observability.heartbeats import Heartbeat
from common.redis.connection import async_client
from ops.doctor.checks import queue as checks
from ops.doctor.finding import CheckSkipped, Health
from ops.doctor.machine import Machine
from tests.ops.doctor.machines import finding_of, real_machine, status_of
from tests.support.servers import REAL, RealServer

KEYS = JobKeys()
GROUP = "workers"


@pytest.fixture(params=REAL)
def server(request: Any, real_server: Any) -> RealServer:
    server: RealServer = real_server(request.param)
    server.client.flushall()
    return server


def fresh(server: RealServer, **options: Any) -> Machine:
    """A machine without cached readings."""
    return real_machine(server, **options)


def enqueue(server: RealServer, age_s: float = 0.0) -> str:
    entry_id = f"{int((time.time() - age_s) * 1000)}-*" if age_s else "*"
    if age_s:
        entry_id = f"{int((time.time() - age_s) * 1000)}-1"
    client: Any = server.client
    fields = {"job_id": "a", "task": "chat", "payload": "{}"}
    return str(client.xadd(KEYS.queue, fields, id=entry_id).decode())


def make_group(server: RealServer) -> None:
    client: Any = server.client
    client.xgroup_create(KEYS.queue, GROUP, id="0", mkstream=True)


def live(server: RealServer, name: str = "w1", **values: Any) -> None:
    """Write the heartbeat of a worker."""
    now_ms = int(time.time() * 1000)
    values = {"version": "0.1.0", "max_inflight": 4, "seen_ms": now_ms, **values}
    client: Any = server.client
    client.set(KEYS.worker(name), Heartbeat(consumer=name, **values).to_json(), ex=60)
    client.zadd(KEYS.workers, {name: now_ms})


def take(server: RealServer, idle_ms: int, consumer: str = "w1") -> None:
    """Let a consumer take a message and stay inactive for `idle_ms`."""
    client: Any = server.client
    [[_, [[entry_id, _]]]] = client.xreadgroup(GROUP, consumer, {KEYS.queue: ">"}, count=1)
    client.xclaim(KEYS.queue, GROUP, consumer, 0, [entry_id], idle=idle_ms)


def test_empty_redis(server: RealServer) -> None:
    machine = fresh(server)
    assert status_of(checks.key_types, machine) is Health.NOTE
    assert status_of(checks.group, machine) is Health.NOTE
    assert status_of(checks.workers, machine) is Health.FAIL
    assert status_of(checks.audit, machine) is Health.NOTE
    for check in (
        *(checks.consumers, checks.pending, checks.waiting, checks.backlog),
        *(checks.scheduled, checks.dead_letters),
    ):
        assert status_of(check, machine) is Health.OK, check.name
    with pytest.raises(CheckSkipped):
        checks.versions.run(machine)


def test_healthy_queue(server: RealServer) -> None:
    make_group(server)
    enqueue(server)
    take(server, 0)
    enqueue(server)
    live(server, in_flight=1)
    machine = fresh(server)
    for check in checks.CHECKS:
        if check is not checks.audit:
            assert status_of(check, machine) is Health.OK, check.name
    assert finding_of(checks.workers, machine).seen == "1 worker: w1 (1 of 4 busy)"
    assert finding_of(checks.pending, machine).seen.startswith("1 in progress")
    assert finding_of(checks.waiting, machine).seen.startswith("1 waiting")


def test_key_of_another_type(server: RealServer) -> None:
    server.client.set(KEYS.queue, "hello")
    machine = fresh(server)
    found = finding_of(checks.key_types, machine)
    assert found.status is Health.FAIL
    assert f"RENAME {KEYS.queue} {KEYS.queue}.renamed" in found.fix
    for check in checks.CHECKS:  # the other checks still run
        try:
            finding_of(check, machine)
        except CheckSkipped:
            continue


def test_jobs_without_workers(server: RealServer) -> None:
    enqueue(server, age_s=300)
    machine = fresh(server)
    assert status_of(checks.group, machine) is Health.FAIL
    assert status_of(checks.waiting, machine) is Health.FAIL
    found = finding_of(checks.workers, machine)
    assert found.status is Health.FAIL
    assert "1 job waiting" in found.seen
    assert found.fix.startswith("python -m worker.echo_worker")


def test_busy_stuck_and_paused_workers(server: RealServer) -> None:
    make_group(server)
    enqueue(server, age_s=300)
    live(server, in_flight=4)
    found = finding_of(checks.waiting, fresh(server))
    assert (found.status, found.cause) == (Health.WARN, "all workers are busy")
    live(server, in_flight=0)
    assert "stuck" in finding_of(checks.waiting, fresh(server)).cause
    live(server, holding=True, paused=True)
    assert finding_of(checks.waiting, fresh(server)).cause == "the queue is paused"


def test_holding_paused_and_stopping_workers(server: RealServer) -> None:
    live(server, holding=True, holding_why="97 °C at cpu-thermal")
    found = finding_of(checks.workers, fresh(server))
    assert found.status is Health.WARN
    assert "97 °C" in found.cause
    live(server, holding=True, paused=True, holding_why="the queue is paused: tea")
    found = finding_of(checks.workers, fresh(server))
    assert (found.status, found.cause) == (Health.WARN, "the queue is paused: tea")
    assert "sluice queue resume" in found.fix
    live(server, draining=True)
    found = finding_of(checks.workers, fresh(server))
    assert found.status is Health.WARN
    assert "stopping" in found.seen


def test_third_party_workers(server: RealServer) -> None:
    make_group(server)
    enqueue(server)
    take(server, 0, "other")
    found = finding_of(checks.workers, fresh(server))
    assert found.status is Health.NOTE
    assert "other" in found.seen


def test_damaged_heartbeats(server: RealServer) -> None:
    client: Any = server.client
    client.zadd(KEYS.workers, {"w1": 1, b"\xff\x1b[31m": 2})
    client.set(KEYS.worker("w1"), b"{nonsense")
    assert status_of(checks.workers, fresh(server)) is Health.FAIL


def test_expired_leases(server: RealServer) -> None:
    make_group(server)
    enqueue(server)
    take(server, 3_600_000)
    machine = fresh(server)
    assert status_of(checks.pending, machine) is Health.FAIL
    live(server, "w2")
    assert status_of(checks.pending, fresh(server)) is Health.WARN


def test_inactive_consumers(server: RealServer) -> None:
    make_group(server)
    enqueue(server)
    take(server, 0)
    settings = fresh(server).worker_settings.model_copy(update={"lease_ms": 0})
    time.sleep(0.005)  # Redis counts in milliseconds
    found = finding_of(checks.consumers, fresh(server, worker_settings=settings))
    assert found.status is Health.WARN
    assert "w1 (1 pending" in found.seen
    live(server)
    found = finding_of(checks.consumers, fresh(server, worker_settings=settings))
    assert "does not read" in found.cause


def test_backlog(server: RealServer) -> None:
    for _ in range(9):
        enqueue(server)
    for limit, status in {100: Health.OK, 10: Health.WARN, 9: Health.WARN}.items():
        settings = fresh(server).gateway_settings.model_copy(
            update={"backpressure_max_backlog": limit}
        )
        assert status_of(checks.backlog, fresh(server, gateway_settings=settings)) is status


def test_overdue_jobs(server: RealServer) -> None:
    client: Any = server.client
    now_ms = int(time.time() * 1000)
    client.zadd(KEYS.scheduled, {"later": now_ms + 60_000, "just now": now_ms - 1000})
    assert status_of(checks.scheduled, fresh(server)) is Health.OK
    client.zadd(KEYS.scheduled, {"late": now_ms - 600_000})
    found = finding_of(checks.scheduled, fresh(server))
    assert found.status is Health.FAIL
    assert found.seen == "1 job overdue, by up to 10 min"


def test_dead_letters(server: RealServer) -> None:
    client: Any = server.client
    client.xadd(KEYS.dead_letters, {DeadLetterField.REASON: "attempts_exhausted"})
    found = finding_of(checks.dead_letters, fresh(server))
    assert found.status is Health.WARN
    assert found.seen == "1 dead letter; the last: attempts_exhausted"
    assert "sluice dlq groups --url http://127.0.0.1:8080" in found.fix


async def test_audits(server: RealServer) -> None:
    client = async_client(server.url, connections=1)
    now_ms = int(time.time() * 1000)
    lost = Violation("a", Rule.NOT_QUEUED, "gone")
    try:
        await store_report(client, KEYS, AuditReport(now_ms, 5, 1))
        assert status_of(checks.audit, fresh(server)) is Health.OK
        await store_report(client, KEYS, AuditReport(now_ms, 5, 1, (lost,), 1))
        found = finding_of(checks.audit, fresh(server))
        assert (found.status, found.fix) == (Health.FAIL, "sluice audit --local")
        await store_report(client, KEYS, AuditReport(now_ms, 5, 1))
        assert status_of(checks.audit, fresh(server)) is Health.NOTE
        await client.hset(KEYS.audit, AuditField.LAST_TS, str(now_ms - 86_400_000))
        assert status_of(checks.audit, fresh(server)) is Health.WARN
        settings = fresh(server).worker_settings.model_copy(update={"audit_every_s": 0.0})
        machine = fresh(server, worker_settings=settings)
        assert status_of(checks.audit, machine) is Health.NOTE
    finally:
        await client.aclose()


def test_worker_versions(server: RealServer) -> None:
    live(server)
    assert status_of(checks.versions, fresh(server)) is Health.OK
    live(server, "w2", version="0.0.9")
    found = finding_of(checks.versions, fresh(server))
    assert found.status is Health.WARN
    assert "0.0.9, 0.1.0" in found.seen
