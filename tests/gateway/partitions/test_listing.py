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
    """A job as it lies in its partition, accepted then."""
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


async def test_jobs_that_were_posted_are_all_there(gateway: Gateway) -> None:
    made = {await gateway.create() for _ in range(24)}
    assert len({line_of(gateway, job_id).number for job_id in made}) > 1
    found = await page(gateway, limit=200)
    assert {job["job_id"] for job in found["jobs"]} == made
    assert found["next"] is None


async def test_one_order_the_newest_first(gateway: Gateway) -> None:
    expected = await many(gateway, 60)
    assert [job["job_id"] for job in (await page(gateway, limit=200))["jobs"]] == expected


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_pages_have_each_job_once(fake_make: Make, limit: int) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS)
    expected = await many(gateway, 60, per_ms=7)
    assert await all_pages(gateway, limit=limit) == expected


async def test_pages_that_are_read_in_small_looks(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_BATCH", 8)
    monkeypatch.setattr(listing, "MIN_SCAN_BATCH", 2)
    gateway = fake_make(queue_partitions=PARTITIONS)
    expected = await many(gateway, 90, per_ms=11)
    assert await all_pages(gateway, limit=9) == expected


async def test_new_jobs_move_none_to_another_page(gateway: Gateway) -> None:
    expected = await many(gateway, 40)
    first = await page(gateway, limit=15)
    await many(gateway, 20)
    late = [await put(gateway, NOON + 5000 + at) for at in range(10)]
    rest = await all_pages(gateway, limit=15, cursor=first["next"])
    found = [job["job_id"] for job in first["jobs"]] + rest
    assert [job_id for job_id in found if job_id in expected] == expected
    assert not set(found) & set(late)


async def test_what_is_looked_for(gateway: Gateway) -> None:
    await many(gateway, 30)
    wanted = [
        await put(gateway, NOON - 1 - at, status="done", payload='{"a":"needle"}')
        for at in range(8)
    ]
    found = await page(gateway, status="done")
    assert [job["job_id"] for job in found["jobs"]] == wanted
    found = await page(gateway, q="NEEDLE", until=NOON - 4)
    assert [job["job_id"] for job in found["jobs"]] == wanted[4:]


async def test_a_page_reads_no_more_than_it_may(
    fake_make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_READ", 20)
    monkeypatch.setattr(listing, "AT_ONCE", 10)
    gateway = fake_make(queue_partitions=PARTITIONS)
    expected = await many(gateway, 60)
    found = await page(gateway, status="error")
    assert (found["jobs"], found["looked_at"]) == ([], 20)
    assert found["next"] == f"{NOON + 40}-{expected[19]}"


async def test_ids_of_others_cost_little_and_the_end_is_found(
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
    assert first["next"].endswith("-~"), "whose the last one is, is nobody's business"
    assert await all_pages(gateway, key) == [own]


async def test_what_has_expired_leaves_the_index_of_its_partition(gateway: Gateway) -> None:
    expected = await many(gateway, 24)
    gone = random.Random(3).sample(expected, 12)
    assert len({line_of(gateway, job_id).number for job_id in gone}) > 1
    for job_id in gone:
        await gateway.redis.delete(line_of(gateway, job_id).keys.job(job_id))
    found = [job["job_id"] for job in (await page(gateway, limit=200))["jobs"]]
    assert found == [job_id for job_id in expected if job_id not in gone]
    left = [await gateway.redis.zcard(line.keys.index) for line in gateway.state.lines]
    assert sum(left) == 12


async def test_something_else_in_place_of_one_index(fake_make: Make) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS)
    await many(gateway, 20)
    index = gateway.state.lines.clients[2].keys.index
    await gateway.redis.delete(index)
    await gateway.redis.set(index, "x")
    check_problem(await ask(gateway), 503, "store_corrupt")
