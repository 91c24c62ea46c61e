"""`/v1/audit` over partitions: all jobs are checked, with one result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from common.contracts.jobs import AuditField
from common.jobs.audit.auditor import AuditNotPermitted
from tests.gateway.admin.test_audit import post
from tests.gateway.conftest import Gateway, Make
from tests.support.backends import FAKE, Backend

PARTITIONS = 4


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(queue_partitions=PARTITIONS)


async def test_every_partition_is_audited_in_one_report(gateway: Gateway) -> None:
    job_ids = [await gateway.create() for _ in range(16)]
    lost = {gateway.state.lines.for_job(job_id).number: job_id for job_id in job_ids}
    assert len(lost) > 1
    for number, job_id in lost.items():
        # No worker has had the job for a long time.
        keys = gateway.state.lines.clients[number].keys
        for entry_id, fields in await gateway.redis.xrange(keys.queue):
            if fields[b"job_id"] == job_id.encode():
                await gateway.redis.xdel(keys.queue, entry_id)
        await gateway.redis.hset(keys.job(job_id), "updated_ts", "1760000000000")  # type: ignore[misc]
    lines = await post(gateway)
    report = lines[-1]
    assert report["type"] == "report"
    assert (report["jobs_checked"], report["violations_total"]) == (16, len(lost))
    reported = {line["job_id"] for line in lines if line["type"] == "violation"}
    assert reported == set(lost.values())
    shown = (await gateway.client.get("/v1/audit")).json()
    assert shown["last"]["jobs_checked"] == 16
    home, *others = [line.keys.audit for line in gateway.state.lines]
    kept = await gateway.redis.hget(home, AuditField.LAST_FOUND)  # type: ignore[misc]
    assert {found["job_id"] for found in json.loads(kept)} == reported
    assert not await gateway.redis.exists(*others)


def scans_of(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Patterns of the scans of a server that start from the beginning."""
    begun: list[Any] = []
    scan = client.scan

    async def counted(cursor: int = 0, match: Any = None, **options: Any) -> Any:
        if cursor == 0:
            begun.append(match)
        return await scan(cursor, match=match, **options)

    monkeypatch.setattr(client, "scan", counted)
    return begun


async def test_each_server_is_scanned_once(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Backend(FAKE)
    gateway = fake_make(queue_partitions=PARTITIONS, others={2: other})
    job_ids = [await gateway.create() for _ in range(24)]
    here, there = gateway.state.lines.home.client, gateway.state.lines.clients[2].client
    monkeypatch.setattr(here, "info", _server("a"))
    monkeypatch.setattr(there, "info", _server("b"))
    begun = scans_of(here, monkeypatch), scans_of(there, monkeypatch)
    report = await gateway.state.auditor.run()
    assert (report.jobs_checked, report.violations_total) == (len(job_ids), 0)
    assert begun == (["{*}:job:*"], ["{2}:job:*"])
    await other.close()


async def test_without_a_run_id_each_client_is_scanned_once(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS)
    job_ids = [await gateway.create() for _ in range(12)]
    client = gateway.state.lines.home.client
    monkeypatch.setattr(client, "info", _server("", NoPermissionError("INFO")))
    begun = scans_of(client, monkeypatch)
    assert (await gateway.state.auditor.run()).jobs_checked == len(job_ids)
    assert len(begun) == 1, "all partitions have one client"


def _server(run_id: str, error: Exception | None = None) -> Any:
    async def info(section: str) -> dict[str, str]:
        if error is not None:
            raise error
        return {"run_id": run_id}

    return info


async def test_the_audit_fails_if_one_server_does_not_permit_it(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Backend(FAKE)
    gateway = fake_make(queue_partitions=PARTITIONS, others={2: other})
    there = gateway.state.lines.clients[2].client

    async def refused(*args: Any, **options: Any) -> Any:
        raise NoPermissionError("TIME")

    monkeypatch.setattr(there, "time", refused)
    with pytest.raises(AuditNotPermitted):
        await gateway.state.auditor.run()
    assert not gateway.state.auditor.running
    await other.close()
