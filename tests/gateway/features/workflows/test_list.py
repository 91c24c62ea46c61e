"""`GET /api/workflow/jobs`: newest first, bounded, by tenant."""

from __future__ import annotations

from typing import Any

import pytest

from common.features.workflows import listing
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.features.workflows.kit import KEYS, PLAIN, Workflows, check_envelope


async def ids_of(workflows: Workflows, query: str = "", **headers: str) -> list[str]:
    """Ids over all pages."""
    found: list[str] = []
    cursor = ""
    for _ in range(100):
        answer = await workflows.get(f"?{query}{cursor}", **headers)
        assert answer.status == 200, answer
        body = answer.json()
        page = body["pagination"]
        assert page["count"] == len(body["jobs"])
        assert page["has_more"] is (page["next_cursor"] is not None)
        found += [job["job_id"] for job in body["jobs"]]
        if not page["has_more"]:
            return found
        cursor = f"&cursor={page['next_cursor']}"
    raise AssertionError("the list does not end")


async def test_jobs_are_listed_newest_first(workflows: Workflows) -> None:
    job_ids = [await workflows.create_job() for _ in range(5)]
    await workflows.run(job_ids[2], "sources")
    answer = await workflows.read("")
    assert list(answer) == ["success", "jobs", "pagination"]
    assert [job["job_id"] for job in answer["jobs"]] == job_ids[::-1]
    whole = await workflows.status(job_ids[2])
    listed = answer["jobs"][2]
    assert listed == {name: whole[name] for name in listed}
    assert list(listed) == list(whole)[: len(listed)]
    assert answer["pagination"] == {
        "count": 5, "has_more": False, "next_cursor": None, "total": 5,
    }  # fmt: skip


async def test_jobs_are_filtered_by_status_and_workflow(fake_workflows: Workflows) -> None:
    await fake_workflows.declare()
    job_ids = [await fake_workflows.create_job() for _ in range(3)]
    plain = await fake_workflows.create_job({"workflow": PLAIN.name})
    await fake_workflows.run(job_ids[1], "sources")
    assert await ids_of(fake_workflows, "status=running") == [job_ids[1]]
    assert await ids_of(fake_workflows, "status=queued&limit=1") == [plain, job_ids[2], job_ids[0]]
    assert await ids_of(fake_workflows, f"workflow={PLAIN.name}") == [plain]
    assert await ids_of(fake_workflows, "workflow=nope") == []
    assert await ids_of(fake_workflows, "status=running&workflow=plain_v1") == []
    filtered = await fake_workflows.read("?status=queued")
    assert filtered["pagination"]["total"] is None, "filtered jobs are not counted"


@pytest.mark.parametrize("scan_size", [2, 3, 200])
async def test_pages_have_no_gap_and_no_overlap(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch, scan_size: int
) -> None:
    """Also if many were created at the same time."""
    monkeypatch.setattr(listing, "SCAN_SIZE", scan_size)
    job_ids = [await fake_workflows.create_job() for _ in range(7)]
    times = dict(zip(job_ids, (1, 2, 2, 2, 2, 2, 3)))
    await fake_workflows.redis.delete(KEYS.index())
    await fake_workflows.redis.zadd(KEYS.index(), times)
    for limit in (1, 2, 3, 7):
        assert await ids_of(fake_workflows, f"limit={limit}") == job_ids[::-1]
        skipped = await fake_workflows.read(f"?limit={limit}&offset=2")
        assert [job["job_id"] for job in skipped["jobs"]] == job_ids[::-1][2 : 2 + limit]


async def test_new_jobs_do_not_shift_later_pages(fake_workflows: Workflows) -> None:
    job_ids = [await fake_workflows.create_job() for _ in range(4)]
    first = await fake_workflows.read("?limit=2")
    await fake_workflows.create_job()
    cursor = first["pagination"]["next_cursor"]
    assert await ids_of(fake_workflows, f"cursor={cursor}") == job_ids[1::-1]


async def test_expired_jobs_are_skipped(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request scans a limited number, however many have expired."""
    monkeypatch.setattr(listing, "SCAN_SIZE", 2)
    monkeypatch.setattr(listing, "MOST_LOOKS", 2)
    job_ids = [await fake_workflows.create_job() for _ in range(9)]
    for job_id in job_ids[2:]:
        await fake_workflows.redis.delete(KEYS.job(job_id))
    first = await fake_workflows.read("?limit=2")
    assert first["jobs"] == []
    assert first["pagination"]["has_more"] is True
    assert await ids_of(fake_workflows, "limit=2") == job_ids[1::-1]


async def test_a_large_offset_continues_on_the_next_pages(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_SIZE", 2)
    monkeypatch.setattr(listing, "MOST_LOOKS", 2)
    job_ids = [await fake_workflows.create_job() for _ in range(12)]
    await fake_workflows.redis.delete(KEYS.job(job_ids[8]))
    there = [job_id for job_id in job_ids[::-1] if job_id != job_ids[8]]
    for offset in range(12):
        assert await ids_of_from(fake_workflows, offset) == there[offset:]
    assert await ids_of_from(fake_workflows, 10_000_000) == []


async def ids_of_from(workflows: Workflows, offset: int) -> list[str]:
    """The first page by its offset, the others by their cursors."""
    page = await workflows.read(f"?limit=2&offset={offset}")
    found = [job["job_id"] for job in page["jobs"]]
    cursor = page["pagination"]["next_cursor"]
    return found + (await ids_of(workflows, f"limit=2&cursor={cursor}") if cursor else [])


async def test_tenants_see_only_their_own_jobs(workflows: Workflows) -> None:
    gateway = workflows.gateway
    scopes = ("jobs:write", "jobs:read")
    own_key = bearer(await key_for(gateway, "a", scopes=scopes, tenant="own"))
    other_key = bearer(await key_for(gateway, "b", scopes=scopes, tenant="other"))
    without_tenant = await workflows.create_job()
    a = await workflows.create_job(**own_key)
    b = await workflows.create_job(**other_key)
    assert await ids_of(workflows, **own_key) == [a]
    assert await ids_of(workflows, **other_key) == [b]
    assert await ids_of(workflows) == [b, a, without_tenant]
    assert (await workflows.get("", **own_key)).json()["pagination"]["total"] == 1


MISFITS = [
    ("limit=0", 422, "validation_error", "limit"),
    ("status=canceled", 422, "validation_error", "status"),
    ("cursor=evt_3", 400, "invalid_cursor", "cursor"),
    ("cursor=job_3", 400, "invalid_cursor", "cursor"),
    ("cursor=job_1_20260214_001&offset=1", 400, "pagination_conflict", "offset"),
]


async def test_invalid_query_parameters_are_rejected(fake_workflows: Workflows) -> None:
    for query, status, code, field in MISFITS:
        answer = await fake_workflows.get(f"?{query}")
        check_envelope(answer, status, code, field)


async def test_an_index_of_another_type_is_reported(fake_workflows: Workflows) -> None:
    await fake_workflows.redis.set(KEYS.index(), "x")
    check_envelope(await fake_workflows.get(""), 503, "store_corrupt")


async def test_without_jobs_the_list_is_empty(workflows: Workflows) -> None:
    answer: Any = await workflows.read("")
    assert answer["jobs"] == []
    assert answer["pagination"] == {
        "count": 0, "has_more": False, "next_cursor": None, "total": 0,
    }  # fmt: skip
