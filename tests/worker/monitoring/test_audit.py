"""The periodic audit: in one worker at a time, with its violations in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.audit.auditor import Auditor, AuditPace
from sluice.common.jobs.audit.report import AuditReport, load_record, store_report
from sluice.common.redis.connection import async_client
from sluice.worker.monitoring.audit import PeriodicAudit
from tests.support.store.jobs import StoreHarness
from tests.support.waiting import eventually

QUICK = AuditPace(grace_s=0.0, pause_s=0.0, recheck_delay_s=0.01)


def auditing(harness: StoreHarness, every_s: float = 300.0, **options: Any) -> PeriodicAudit:
    auditor = Auditor(harness.client, harness.keys, harness.worker.group, QUICK)
    return PeriodicAudit(auditor, harness.client, harness.keys, every_s, **options)


async def broken_job(harness: StoreHarness) -> str:
    lease = await harness.running()
    await harness.finish(lease)
    await harness.client.persist(harness.keys.job(lease.job_id))
    return lease.job_id


async def test_violations_are_logged_with_the_job_and_counted(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await broken_job(harness)
    caplog.set_level(logging.INFO)
    report = await auditing(harness).run_once()
    assert report is not None
    assert (report.jobs_checked, report.violations_total) == (1, 1)
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert job_id in line.getMessage()
    assert "no_ttl" in line.getMessage()
    record = await load_record(harness.client, harness.keys)
    assert (record.last_jobs, record.last_violations, record.violations_total) == (1, 1, 1)
    assert job_id.encode() in record.last_found
    assert not await harness.client.exists(harness.keys.audit_lock)


@pytest.mark.fakeredis_only
async def test_a_clean_audit_logs_no_error(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.finish(await harness.running())
    assert (await auditing(harness).run_once()) is not None
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_no_audit_while_another_worker_audits_or_just_did(harness: StoreHarness) -> None:
    await harness.client.set(harness.keys.audit_lock, "another", ex=60)
    assert await auditing(harness).run_once() is None
    assert await harness.client.get(harness.keys.audit_lock) == b"another"
    assert (await load_record(harness.client, harness.keys)).last_ts == 0
    await harness.client.delete(harness.keys.audit_lock)
    await harness.finish(await harness.running())
    reports = await asyncio.gather(*(auditing(harness).run_once() for _ in range(8)))
    assert len([report for report in reports if report is not None]) == 1
    assert (await load_record(harness.client, harness.keys)).jobs_total == 1
    assert await auditing(harness).run_once() is None
    await harness.client.hincrby(harness.keys.audit, "last_ts", -280_000)  # type: ignore[misc]
    assert await auditing(harness).run_once() is not None
    # A last audit in the future is ignored.
    await store_report(harness.client, harness.keys, AuditReport(10**15, 1, 1))
    assert await auditing(harness).run_once() is not None


async def test_the_lock_is_renewed_during_the_audit(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.monitoring.audit.RENEW_AFTER", 0.01)
    first, second = auditing(harness, lock_ttl_s=10), auditing(harness)
    gate = asyncio.Event()

    async def slow(*args: Any) -> AuditReport:
        await gate.wait()
        return AuditReport(1, 0, 0)

    monkeypatch.setattr(first._auditor, "run", slow)
    running = asyncio.create_task(first.run_once())
    await eventually(lambda: harness.client.exists(harness.keys.audit_lock))
    assert 0 < await harness.client.ttl(harness.keys.audit_lock) <= 10  # if the auditor dies
    renewed = 0
    before = await harness.client.pttl(harness.keys.audit_lock)
    while renewed < 3:  # the TTL decreases, and increases again
        assert await second.run_once() is None
        left = await harness.client.pttl(harness.keys.audit_lock)
        assert left > 0
        renewed += left > before
        before = left
    gate.set()
    assert await running is not None
    assert not await harness.client.exists(harness.keys.audit_lock)


async def test_a_lost_lock_is_not_taken_from_its_new_owner(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = auditing(harness)

    async def overtaken(*args: Any) -> AuditReport:
        await harness.client.set(harness.keys.audit_lock, "another", ex=60)
        return AuditReport(1, 0, 0)

    monkeypatch.setattr(ours._auditor, "run", overtaken)
    await ours.run_once()
    assert await harness.client.get(harness.keys.audit_lock) == b"another"


async def test_a_canceled_audit_releases_the_lock(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = auditing(harness)
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
    assert not await harness.client.exists(harness.keys.audit_lock)


@pytest.mark.parametrize("key", ["audit", "audit_lock"])
async def test_keys_of_another_type(harness: StoreHarness, key: str) -> None:
    job_id = await broken_job(harness)
    await harness.client.rpush(getattr(harness.keys, key), "x")  # type: ignore[misc]
    assert await auditing(harness).run_once() is None
    assert await harness.client.type(getattr(harness.keys, key)) == b"list"
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


@pytest.mark.fakeredis_only
async def test_audits_repeat_but_do_not_start_at_once(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after an unexpected error."""
    ours = auditing(harness, every_s=0.2)
    audit, calls = ours._auditor.run, 0

    async def fails_once(*args: Any) -> AuditReport:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("a mistake")
        return await audit(*args)

    monkeypatch.setattr(ours._auditor, "run", fails_once)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(0.05)
    assert calls == 0
    stored: set[int] = set()

    async def twice() -> bool:
        stored.add((await load_record(harness.client, harness.keys)).last_ts)
        return len(stored - {0}) >= 2

    await eventually(twice)
    await cancel(running)
    assert "a mistake" in caplog.text


@pytest.mark.fakeredis_only
async def test_an_interval_of_0_disables_the_audit(harness: StoreHarness) -> None:
    await asyncio.wait_for(auditing(harness, every_s=0.0).run(), 5)
    assert not await harness.client.exists(harness.keys.audit)


async def test_it_can_be_canceled_during_an_audit(harness: StoreHarness) -> None:
    """redis-py may swallow a cancellation."""
    job_id = await broken_job(harness)
    for turns in range(0, 60, 6):
        await harness.client.delete(harness.keys.audit, harness.keys.audit_lock)
        auditor = Auditor(
            harness.client, harness.keys, harness.worker.group, AuditPace(recheck_delay_s=3600.0)
        )
        ours = PeriodicAudit(auditor, harness.client, harness.keys, 0.001)
        running = asyncio.create_task(ours.run())
        await eventually(lambda auditor=auditor: auditor.running)
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=10)
        assert done
        assert not auditor.running
    assert job_id
