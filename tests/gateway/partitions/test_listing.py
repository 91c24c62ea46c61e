"""`GET /v1/jobs` over partitions: one order, each job once, with the same bounds."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from common.access.record import tenant_tail
from common.jobs.partition_clients import PartitionClient
from gateway.jobs import listing
from gateway.jobs.ids import new_job_id, new_job_id_in
from tests.gateway.access_kit import key_for
from tests.gateway.conftest import Gateway, Make, check_problem
from tests.gateway.jobs.test_listing import NOON, all_pages, ask, page

PARTITIONS = 4


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(queue_partitions=PARTITIONS)


def line_of(gateway: Gateway, job_id: str) -> PartitionClient:
    return gateway.state.lines.for_job(job_id)


async def put(gateway: Gateway, ms: int = NOON, job_id: str = "", **fields: Any) -> str:
    """Store a job in its partition as if it had been accepted at `ms`."""
    job_id = job_id or str(uuid.uuid4())
    record: dict[str, Any]
    record = {"job_id": job_id, "task": "chat", "payload": '{"text":"hello"}', "status": "queued"}
    record |= {"created_ts": ms, "updated_ts": ms + 1, "ttl_s": 600, "result": "", "error": ""}
    keys = line_of(gateway, job_id).keys
    await gateway.redis.hset(keys.job(job_id), mapping=record | fields)  # type: ignore[misc]
    await gateway.redis.zadd(keys.index, {job_id: ms})
    return job_id


async def many(gateway: Gateway, number: int, per_ms: int = 1, **fields: Any) -> list[str]:
    """Jobs in every partition; returns their ids, the newest first."""
    partitions = gateway.state.lines.partitions
    jobs = []
    for at in range(number):
        job_id = new_job_id_in(partitions, at % PARTITIONS)
        jobs.append(
            (NOON + at // per_ms, await put(gateway, NOON + at // per_ms, job_id, **fields))
        )
    return [job_id for _, job_id in sorted(jobs, reverse=True)]


async def test_all_posted_jobs_are_listed(gateway: Gateway) -> None:
    job_ids = {await gateway.create() for _ in range(24)}
    assert len({line_of(gateway, job_id).number for job_id in job_ids}) > 1
    found = await page(gateway, limit=200)
    assert {job["job_id"] for job in found["jobs"]} == job_ids
    assert found["next"] is None


async def test_jobs_are_one_list_newest_first(gateway: Gateway) -> None:
    expected = await many(gateway, 60)
    assert [job["job_id"] for job in (await page(gateway, limit=200))["jobs"]] == expected


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_pages_list_each_job_once(fake_make: Make, limit: int) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS)
    expected = await many(gateway, 60, per_ms=7)
    assert await all_pages(gateway, limit=limit) == expected


async def test_pages_read_in_small_batches_are_complete(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_BATCH", 8)
    monkeypatch.setattr(listing, "MIN_SCAN_BATCH", 2)
    gateway = fake_make(queue_partitions=PARTITIONS)
    expected = await many(gateway, 90, per_ms=11)
    assert await all_pages(gateway, limit=9) == expected


async def test_new_jobs_do_not_shift_later_pages(gateway: Gateway) -> None:
    expected = await many(gateway, 40)
    first = await page(gateway, limit=15)
    await many(gateway, 20)
    late = [await put(gateway, NOON + 5000 + at) for at in range(10)]
    rest = await all_pages(gateway, limit=15, cursor=first["next"])
    found = [job["job_id"] for job in first["jobs"]] + rest
    assert [job_id for job_id in found if job_id in expected] == expected
    assert not set(found) & set(late)


async def test_jobs_are_filtered_by_status_text_and_time(gateway: Gateway) -> None:
    await many(gateway, 30)
    matching = [
        await put(gateway, NOON - 1 - at, status="done", payload='{"a":"needle"}')
        for at in range(8)
    ]
    found = await page(gateway, status="done")
    assert [job["job_id"] for job in found["jobs"]] == matching
    found = await page(gateway, q="NEEDLE", until=NOON - 4)
    assert [job["job_id"] for job in found["jobs"]] == matching[4:]


async def test_a_page_reads_at_most_its_limit(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_READ", 20)
    monkeypatch.setattr(listing, "AT_ONCE", 10)
    gateway = fake_make(queue_partitions=PARTITIONS)
    expected = await many(gateway, 60)
    found = await page(gateway, status="error")
    assert (found["jobs"], found["looked_at"]) == ([], 20)
    assert found["next"] == f"{NOON + 40}-{expected[19]}"


async def test_ids_of_other_tenants_are_skipped_without_reading_jobs(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_BATCH", 8)
    monkeypatch.setattr(listing, "MIN_SCAN_BATCH", 2)
    monkeypatch.setattr(listing, "MAX_SCANS", 3)
    gateway = fake_make(queue_partitions=PARTITIONS)
    key = await key_for(gateway, tenant="acme", scopes=["jobs:read"])
    await many(gateway, 60)
    own = await put(gateway, NOON - 10, new_job_id(tenant_tail("acme")))
    first = await page(gateway, key)
    assert (first["jobs"], first["looked_at"]) == ([], 0)
    assert first["next"].endswith("-~"), "the cursor does not name another tenant's job"
    assert await all_pages(gateway, key) == [own]


async def test_expired_jobs_are_removed_from_the_index(gateway: Gateway) -> None:
    expected = await many(gateway, 24)
    gone = random.Random(3).sample(expected, 12)
    assert len({line_of(gateway, job_id).number for job_id in gone}) > 1
    for job_id in gone:
        await gateway.redis.delete(line_of(gateway, job_id).keys.job(job_id))
    found = [job["job_id"] for job in (await page(gateway, limit=200))["jobs"]]
    assert found == [job_id for job_id in expected if job_id not in gone]
    left = [await gateway.redis.zcard(line.keys.index) for line in gateway.state.lines]
    assert sum(left) == 12


async def test_an_index_of_another_type_is_reported(fake_make: Make) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS)
    await many(gateway, 20)
    index = gateway.state.lines.clients[2].keys.index
    await gateway.redis.delete(index)
    await gateway.redis.set(index, "x")
    check_problem(await ask(gateway), 503, "store_corrupt")
