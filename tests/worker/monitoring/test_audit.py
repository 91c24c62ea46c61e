"""The periodic audit: in one worker at a time, with its violations in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.aio import cancel
from common.contracts.jobs import JobKeys
from common.jobs.audit.auditor import Auditor, AuditPace
from common.jobs.audit.report import AuditReport, load_record, store_report
from common.jobs.store import WorkerIdentity
from common.redis.connection import async_client
from tests.common.kit import Scene
from tests.conftest import eventually
from tests.support.backends import Backend
from worker.monitoring.audit import PeriodicAudit

QUICK = AuditPace(grace_s=0.0, pause_s=0.0, recheck_delay_s=0.01)


@pytest.fixture
async def scene(backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> AsyncIterator[Scene]:
    scene = Scene(backend, keys, worker)
    yield scene
    await scene.close()


def auditing(scene: Scene, every_s: float = 300.0, **options: Any) -> PeriodicAudit:
    auditor = Auditor(scene.client, scene.keys, scene.worker.group, QUICK)
    return PeriodicAudit(auditor, scene.client, scene.keys, every_s, **options)


async def broken_job(scene: Scene) -> str:
    lease = await scene.running()
    await scene.finish(lease)
    await scene.client.persist(scene.keys.job(lease.job_id))
    return lease.job_id


async def test_violations_are_logged_with_the_job_and_counted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await broken_job(scene)
    caplog.set_level(logging.INFO)
    report = await auditing(scene).run_once()
    assert report is not None
    assert (report.jobs_checked, report.violations_total) == (1, 1)
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert job_id in line.getMessage()
    assert "no_ttl" in line.getMessage()
    record = await load_record(scene.client, scene.keys)
    assert (record.last_jobs, record.last_violations, record.violations_total) == (1, 1, 1)
    assert job_id.encode() in record.last_found
    assert not await scene.client.exists(scene.keys.audit_lock)


async def test_a_clean_audit_logs_no_error(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.finish(await scene.running())
    assert (await auditing(scene).run_once()) is not None
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_no_audit_while_another_worker_audits(scene: Scene) -> None:
    await scene.client.set(scene.keys.audit_lock, "another", ex=60)
    assert await auditing(scene).run_once() is None
    assert await scene.client.get(scene.keys.audit_lock) == b"another"
    assert (await load_record(scene.client, scene.keys)).last_ts == 0


async def test_no_audit_if_another_worker_just_audited(scene: Scene) -> None:
    first, second = auditing(scene), auditing(scene)
    assert await first.run_once() is not None
    assert await second.run_once() is None
    await scene.client.hincrby(scene.keys.audit, "last_ts", -280_000)  # type: ignore[misc]
    assert await second.run_once() is not None


async def test_a_last_audit_in_the_future_is_ignored(scene: Scene) -> None:
    await store_report(scene.client, scene.keys, AuditReport(10**15, 1, 1))
    assert await auditing(scene).run_once() is not None


async def test_of_many_workers_one_audits(scene: Scene) -> None:
    await scene.finish(await scene.running())
    reports = await asyncio.gather(*(auditing(scene).run_once() for _ in range(8)))
    assert len([report for report in reports if report is not None]) == 1
    assert (await load_record(scene.client, scene.keys)).jobs_total == 1


async def test_the_lock_is_renewed_during_the_audit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.monitoring.audit.RENEW_AFTER", 0.01)
    first, second = auditing(scene, lock_ttl_s=10), auditing(scene)
    gate = asyncio.Event()

    async def slow(*args: Any) -> AuditReport:
        await gate.wait()
        return AuditReport(1, 0, 0)

    monkeypatch.setattr(first._auditor, "run", slow)
    running = asyncio.create_task(first.run_once())
    await eventually(lambda: scene.client.exists(scene.keys.audit_lock))
    renewed = 0
    before = await scene.client.pttl(scene.keys.audit_lock)
    while renewed < 3:  # the TTL decreases, and increases again
        assert await second.run_once() is None
        left = await scene.client.pttl(scene.keys.audit_lock)
        assert left > 0
        renewed += left > before
        before = left
    gate.set()
    assert await running is not None
    assert not await scene.client.exists(scene.keys.audit_lock)


async def test_a_lost_lock_is_not_taken_from_its_new_owner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = auditing(scene)

    async def overtaken(*args: Any) -> AuditReport:
        await scene.client.set(scene.keys.audit_lock, "another", ex=60)
        return AuditReport(1, 0, 0)

    monkeypatch.setattr(ours._auditor, "run", overtaken)
    await ours.run_once()
    assert await scene.client.get(scene.keys.audit_lock) == b"another"


async def test_the_lock_of_a_dead_auditor_expires(scene: Scene) -> None:
    ours = auditing(scene)
    async with ours._exclusive() as turn:
        assert turn
        assert 0 < await scene.client.ttl(scene.keys.audit_lock) <= 60


async def test_a_canceled_audit_releases_the_lock(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = auditing(scene)
    begun = asyncio.Event()

    async def endless(*args: Any) -> AuditReport:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(ours._auditor, "run", endless)
    running = asyncio.create_task(ours.run_once())
    await asyncio.wait_for(begun.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await scene.client.exists(scene.keys.audit_lock)


@pytest.mark.parametrize("key", ["audit", "audit_lock"])
async def test_keys_of_another_type(scene: Scene, key: str) -> None:
    job_id = await broken_job(scene)
    await scene.client.rpush(getattr(scene.keys, key), "x")  # type: ignore[misc]
    assert await auditing(scene).run_once() is None
    assert await scene.client.type(getattr(scene.keys, key)) == b"list"
    assert job_id


async def test_without_redis_the_audit_is_retried_later(
    tmp_path: Any, keys: JobKeys, caplog: pytest.LogCaptureFixture
) -> None:
    client = async_client(f"unix://{tmp_path}/none", connections=1)
    ours = PeriodicAudit(Auditor(client, keys, "workers"), client, keys, 1.0)
    assert await ours.run_once() is None
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    await client.aclose()


async def test_audits_continue_after_an_unexpected_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = auditing(scene, every_s=0.01)
    calls = 0

    async def broken(*args: Any) -> AuditReport:
        nonlocal calls
        calls += 1
        raise ValueError("a mistake")

    monkeypatch.setattr(ours._auditor, "run", broken)
    running = asyncio.create_task(ours.run())
    await eventually(lambda: calls > 2)
    await cancel(running)
    assert "a mistake" in caplog.text


async def test_audits_repeat_but_do_not_start_at_once(scene: Scene) -> None:
    ours = auditing(scene, every_s=0.2)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(0.05)
    assert (await load_record(scene.client, scene.keys)).last_ts == 0
    stored: set[int] = set()

    async def thrice() -> bool:
        stored.add((await load_record(scene.client, scene.keys)).last_ts)
        return len(stored) > 3

    await eventually(thrice)
    await cancel(running)


async def test_an_interval_of_0_disables_the_audit(scene: Scene) -> None:
    await asyncio.wait_for(auditing(scene, every_s=0.0).run(), 5)
    assert await load_record(scene.client, scene.keys) == await load_record(
        scene.client, scene.keys
    )
    assert not await scene.client.exists(scene.keys.audit)


async def test_it_can_be_canceled_during_an_audit(scene: Scene) -> None:
    """redis-py may swallow a cancellation."""
    job_id = await broken_job(scene)
    for turns in range(0, 60, 3):
        await scene.client.delete(scene.keys.audit, scene.keys.audit_lock)
        auditor = Auditor(
            scene.client, scene.keys, scene.worker.group, AuditPace(recheck_delay_s=3600.0)
        )
        ours = PeriodicAudit(auditor, scene.client, scene.keys, 0.001)
        running = asyncio.create_task(ours.run())
        await eventually(lambda auditor=auditor: auditor.running)
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=10)
        assert done
        assert not auditor.running
    assert job_id
