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


async def test_jobs_are_listed_the_newest_first(workflows: Workflows) -> None:
    made = [await workflows.made() for _ in range(5)]
    await workflows.run(made[2], "sources")
    answer = await workflows.read("")
    assert list(answer) == ["success", "jobs", "pagination"]
    assert [job["job_id"] for job in answer["jobs"]] == made[::-1]
    whole = await workflows.status(made[2])
    listed = answer["jobs"][2]
    assert listed == {name: whole[name] for name in listed}
    assert list(listed) == list(whole)[: len(listed)]
    assert answer["pagination"] == {
        "count": 5, "has_more": False, "next_cursor": None, "total": 5,
    }  # fmt: skip


async def test_filters(fake_workflows: Workflows) -> None:
    await fake_workflows.declare()
    made = [await fake_workflows.made() for _ in range(3)]
    plain = await fake_workflows.made({"workflow": PLAIN.name})
    await fake_workflows.run(made[1], "sources")
    assert await ids_of(fake_workflows, "status=running") == [made[1]]
    assert await ids_of(fake_workflows, "status=queued&limit=1") == [plain, made[2], made[0]]
    assert await ids_of(fake_workflows, f"workflow={PLAIN.name}") == [plain]
    assert await ids_of(fake_workflows, "workflow=nope") == []
    assert await ids_of(fake_workflows, "status=running&workflow=plain_v1") == []
    filtered = await fake_workflows.read("?status=queued")
    assert filtered["pagination"]["total"] is None, "nobody has counted them"


@pytest.mark.parametrize("look", [2, 3, 200])
async def test_pages_have_no_gap_and_no_overlap(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Also where many were made in the same instant."""
    monkeypatch.setattr(listing, "SCAN_SIZE", look)
    made = [await fake_workflows.made() for _ in range(7)]
    times = dict(zip(made, (1, 2, 2, 2, 2, 2, 3)))
    await fake_workflows.redis.delete(KEYS.index())
    await fake_workflows.redis.zadd(KEYS.index(), times)
    for limit in (1, 2, 3, 7):
        assert await ids_of(fake_workflows, f"limit={limit}") == made[::-1]
        skipped = await fake_workflows.read(f"?limit={limit}&offset=2")
        assert [job["job_id"] for job in skipped["jobs"]] == made[::-1][2 : 2 + limit]


async def test_new_jobs_move_none_to_another_page(fake_workflows: Workflows) -> None:
    made = [await fake_workflows.made() for _ in range(4)]
    first = await fake_workflows.read("?limit=2")
    await fake_workflows.made()
    cursor = first["pagination"]["next_cursor"]
    assert await ids_of(fake_workflows, f"cursor={cursor}") == made[1::-1]


async def test_what_has_run_out_is_passed_over(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request scans a limited number, however many have expired."""
    monkeypatch.setattr(listing, "SCAN_SIZE", 2)
    monkeypatch.setattr(listing, "MOST_LOOKS", 2)
    made = [await fake_workflows.made() for _ in range(9)]
    for job_id in made[2:]:
        await fake_workflows.redis.delete(KEYS.job(job_id))
    first = await fake_workflows.read("?limit=2")
    assert first["jobs"] == []
    assert first["pagination"]["has_more"] is True
    assert await ids_of(fake_workflows, "limit=2") == made[1::-1]


async def test_an_offset_beyond_what_one_request_looks_at_holds_for_the_next_pages(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_SIZE", 2)
    monkeypatch.setattr(listing, "MOST_LOOKS", 2)
    made = [await fake_workflows.made() for _ in range(12)]
    await fake_workflows.redis.delete(KEYS.job(made[8]))
    there = [job_id for job_id in made[::-1] if job_id != made[8]]
    for offset in range(12):
        assert await ids_of_from(fake_workflows, offset) == there[offset:]
    assert await ids_of_from(fake_workflows, 10_000_000) == []


async def ids_of_from(workflows: Workflows, offset: int) -> list[str]:
    """The first page by its offset, the others by their cursors."""
    page = await workflows.read(f"?limit=2&offset={offset}")
    found = [job["job_id"] for job in page["jobs"]]
    cursor = page["pagination"]["next_cursor"]
    return found + (await ids_of(workflows, f"limit=2&cursor={cursor}") if cursor else [])


async def test_everybody_sees_their_own(workflows: Workflows) -> None:
    gateway = workflows.gateway
    scopes = ("jobs:write", "jobs:read")
    ours = bearer(await key_for(gateway, "a", scopes=scopes, tenant="ours"))
    theirs = bearer(await key_for(gateway, "b", scopes=scopes, tenant="theirs"))
    nobodys = await workflows.made()
    a = await workflows.made(**ours)
    b = await workflows.made(**theirs)
    assert await ids_of(workflows, **ours) == [a]
    assert await ids_of(workflows, **theirs) == [b]
    assert await ids_of(workflows) == [b, a, nobodys]
    assert (await workflows.get("", **ours)).json()["pagination"]["total"] == 1


MISFITS = [
    ("limit=0", 422, "validation_error", "limit"),
    ("status=canceled", 422, "validation_error", "status"),
    ("cursor=evt_3", 400, "invalid_cursor", "cursor"),
    ("cursor=job_3", 400, "invalid_cursor", "cursor"),
    ("cursor=job_1_20260214_001&offset=1", 400, "pagination_conflict", "offset"),
]


async def test_what_cannot_be_asked_for(fake_workflows: Workflows) -> None:
    for query, status, code, field in MISFITS:
        answer = await fake_workflows.get(f"?{query}")
        check_envelope(answer, status, code, field)


async def test_an_index_that_is_none(fake_workflows: Workflows) -> None:
    await fake_workflows.redis.set(KEYS.index(), "x")
    check_envelope(await fake_workflows.get(""), 503, "store_corrupt")


async def test_an_empty_list(workflows: Workflows) -> None:
    answer: Any = await workflows.read("")
    assert answer["jobs"] == []
    assert answer["pagination"] == {
        "count": 0, "has_more": False, "next_cursor": None, "total": 0,
    }  # fmt: skip
