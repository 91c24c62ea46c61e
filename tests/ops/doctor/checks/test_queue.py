"""Checks of the queue and its workers, on real Redis servers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sluice.common.contracts.jobs import AuditField, DeadLetterField, JobKeys
from sluice.common.jobs.audit.report import AuditReport, Violation, store_report
from sluice.common.jobs.audit.rules import Rule
from sluice.common.redis.connection import async_client
from sluice.common.settings.worker import WorkerSettings
from sluice.common.version import VERSION
from sluice.ops.doctor.checks import queue as checks
from sluice.ops.doctor.finding import CheckSkipped, Health
from tests.ops.doctor.machines import Queue, expect, expect_skipped, finding_of
from tests.support.servers import RealServer

KEYS = JobKeys()


@pytest.fixture
def queue(server: RealServer) -> Queue:
    return Queue(server, WorkerSettings())


def test_empty_redis(queue: Queue) -> None:
    machine = queue.machine()
    expect(checks.workers, machine, Health.FAIL)
    for check in (checks.key_types, checks.group, checks.audit):
        expect(check, machine, Health.NOTE)
    for check in (
        *(checks.consumers, checks.pending, checks.waiting, checks.backlog),
        *(checks.scheduled, checks.dead_letters),
    ):
        expect(check, machine, Health.OK)
    expect_skipped(checks.versions, machine)


def test_healthy_queue(queue: Queue) -> None:
    queue.create_groups()
    queue.enqueue()
    queue.take()
    queue.enqueue()
    queue.beat(in_flight=1)
    found = {
        check.name: expect(check, queue.machine(), Health.OK).seen
        for check in checks.CHECKS
        if check is not checks.audit
    }
    assert found["queue.workers"] == "1 worker: w1 (1 of 4 busy)"
    assert found["queue.pending"].startswith("1 in progress")
    assert found["queue.waiting"].startswith("1 waiting")


def test_key_of_another_type(queue: Queue) -> None:
    queue.client.set(KEYS.queue, "hello")
    machine = queue.machine()
    expect(checks.key_types, machine, Health.FAIL, fix=f"RENAME {KEYS.queue} {KEYS.queue}.renamed")
    for check in checks.CHECKS:  # the other checks still run
        try:
            finding_of(check, machine)
        except CheckSkipped:
            continue


def test_jobs_without_workers(queue: Queue) -> None:
    queue.enqueue(age_s=300)
    queue.expect(checks.group, Health.FAIL)
    queue.expect(checks.waiting, Health.FAIL)
    found = queue.expect(checks.workers, Health.FAIL, seen="1 job waiting")
    assert found.fix.startswith("python -m sluice.worker.echo_worker")


@pytest.mark.parametrize(
    ("beat", "cause"),
    [
        ({"in_flight": 4}, "all workers are busy"),
        ({"in_flight": 0}, "the workers have free slots but take no jobs: they are stuck"),
        ({"holding": True, "paused": True}, "the queue is paused"),
    ],
)
def test_why_jobs_wait(queue: Queue, beat: dict[str, Any], cause: str) -> None:
    queue.create_groups()
    queue.enqueue(age_s=300)
    queue.beat(**beat)
    assert queue.expect(checks.waiting, Health.WARN).cause == cause


@pytest.mark.parametrize(
    ("beat", "texts"),
    [
        ({"holding": True, "holding_why": "97 °C at cpu-thermal"}, {"cause": "97 °C"}),
        (
            {"holding": True, "paused": True, "holding_why": "the queue is paused: tea"},
            {"cause": "the queue is paused: tea", "fix": "sluice queue resume"},
        ),
        ({"draining": True}, {"seen": "stopping"}),
    ],
)
def test_workers_that_take_no_jobs(
    queue: Queue, beat: dict[str, Any], texts: dict[str, str]
) -> None:
    queue.beat(**beat)
    queue.expect(checks.workers, Health.WARN, **texts)


def test_third_party_workers(queue: Queue) -> None:
    queue.create_groups()
    queue.enqueue()
    queue.take(consumer="other")
    queue.expect(checks.workers, Health.NOTE, seen="other")


def test_damaged_heartbeats(queue: Queue) -> None:
    queue.client.zadd(KEYS.workers, {"w1": 1, b"\xff\x1b[31m": 2})
    queue.client.set(KEYS.worker("w1"), b"{nonsense")
    queue.expect(checks.workers, Health.FAIL)


def test_expired_leases(queue: Queue) -> None:
    queue.create_groups()
    queue.enqueue()
    queue.take(idle_ms=3_600_000)
    queue.expect(checks.pending, Health.FAIL)
    queue.beat("w2")
    queue.expect(checks.pending, Health.WARN)


def test_inactive_consumers(queue: Queue) -> None:
    queue.create_groups()
    queue.enqueue()
    queue.take()
    settings = WorkerSettings().model_copy(update={"lease_ms": 0})
    time.sleep(0.005)  # Redis counts in milliseconds
    machine = queue.machine(worker_settings=settings)
    expect(checks.consumers, machine, Health.WARN, seen="w1 (1 pending")
    queue.beat()
    machine = queue.machine(worker_settings=settings)
    expect(checks.consumers, machine, Health.WARN, cause="does not read")


def test_backlog(queue: Queue) -> None:
    for _ in range(9):
        queue.enqueue()
    settings = queue.machine().gateway_settings
    for limit, status in {100: Health.OK, 10: Health.WARN, 9: Health.WARN}.items():
        limited = settings.model_copy(update={"backpressure_max_backlog": limit})
        expect(checks.backlog, queue.machine(gateway_settings=limited), status)


def test_overdue_jobs(queue: Queue) -> None:
    now_ms = int(time.time() * 1000)
    queue.client.zadd(KEYS.scheduled, {"later": now_ms + 60_000, "just now": now_ms - 1000})
    queue.expect(checks.scheduled, Health.OK)
    queue.client.zadd(KEYS.scheduled, {"late": now_ms - 600_000})
    found = queue.expect(checks.scheduled, Health.FAIL)
    assert found.seen == "1 job overdue, by up to 10 min"


def test_dead_letters(queue: Queue) -> None:
    queue.client.xadd(KEYS.dead_letters, {DeadLetterField.REASON: "attempts_exhausted"})
    fix = "sluice dlq groups --url http://127.0.0.1:8080"
    found = queue.expect(checks.dead_letters, Health.WARN, fix=fix)
    assert found.seen == "1 dead letter; the last: attempts_exhausted"


async def test_audits(queue: Queue, server: RealServer) -> None:
    now_ms = int(time.time() * 1000)
    lost = Violation("a", Rule.NOT_QUEUED, "gone")
    async with async_client(server.url, connections=1) as client:
        await store_report(client, KEYS, AuditReport(now_ms, 5, 1))
        queue.expect(checks.audit, Health.OK)
        await store_report(client, KEYS, AuditReport(now_ms, 5, 1, (lost,), 1))
        assert queue.expect(checks.audit, Health.FAIL).fix == "sluice audit --local"
        await store_report(client, KEYS, AuditReport(now_ms, 5, 1))
        queue.expect(checks.audit, Health.NOTE)
    queue.client.hset(KEYS.audit, AuditField.LAST_TS, str(now_ms - 86_400_000))
    queue.expect(checks.audit, Health.WARN)
    settings = WorkerSettings().model_copy(update={"audit_every_s": 0.0})
    expect(checks.audit, queue.machine(worker_settings=settings), Health.NOTE)


def test_worker_versions(queue: Queue) -> None:
    queue.beat()
    queue.expect(checks.versions, Health.OK)
    queue.beat("w2", version="0.0.9")
    queue.expect(checks.versions, Health.WARN, seen=f"0.0.9, {VERSION}")


def test_lanes_belong_to_the_queue(server: RealServer) -> None:
    settings = WorkerSettings(lanes="high,low")
    queue = Queue(server, settings)
    queue.create_groups()
    queue.expect(checks.group, Health.OK)  # the lanes have no jobs yet
    high = settings.keys.for_lane("high").stream
    queue.client.xadd(high, {"job_id": "a", "task": "chat", "payload": "{}"})
    assert finding_of(checks.backlog, queue.machine()).seen == "1 of 200"
    queue.expect(checks.group, Health.FAIL)  # no worker reads the lane
    queue.client.delete(high)
    queue.client.set(high, "x")
    queue.expect(checks.key_types, Health.FAIL, seen=high)
