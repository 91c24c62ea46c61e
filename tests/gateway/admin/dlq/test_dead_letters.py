"""`/v1/dlq`: list, read and purge dead letters, also invalid ones."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from gateway.admin.dlq import listing
from gateway.admin.dlq.models import DeadLetterPage, DeadLetterView
from tests.support.gateway.dead_letters import EXHAUSTED, HOSTILE, NO_JOB, call, dead, left, put
from tests.support.gateway.harness import Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

IMPOSSIBLE_IDS = ["x", "1", "1-", "-1", "1-1-1", "1-x", "+", "-", "(1-1", "9" * 21 + "-0", "1%00-1"]


async def page(gateway: Gateway, query: str = "") -> dict[str, Any]:
    answer = await call(gateway, "GET", query)
    assert answer.status == 200, answer
    assert answer.header("content-type") == "application/json"
    DeadLetterPage.model_validate_json(answer.body)
    found: dict[str, Any] = answer.json()
    assert list(found) == ["items", "total", "next"]
    return found


async def walk(gateway: Gateway, query: str) -> list[list[str]]:
    """Ids page by page, following `next`."""
    pages = []
    suffix = ""
    while True:
        found = await page(gateway, query + suffix)
        pages.append([item["id"] for item in found["items"]])
        if found["next"] is None:
            return pages
        suffix = f"&before={found['next']}"


def flat(pages: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(pages))


@partitioned
async def test_a_dead_letter_is_shown_with_all_its_fields(make: Make) -> None:
    gateway = make(dlq_stream_key="other:dead")
    dead_letter_id = await dead(gateway, 7)
    assert [key for key in await gateway.redis.keys("*") if key.endswith(b"other:dead")]
    expected = {
        "id": dead_letter_id,
        "reason": EXHAUSTED,
        "job_id": "job-7",
        "message_id": "1-1",
        "ts": 1760000000000,
        "attempts": 5,
        "first_error": {"kind": "first"},
        "last_error": {"kind": "last"},
        "fields": {"job_id": "job-7", "task": "chat", "payload": '{"n": 7}'},
    }
    assert (await page(gateway))["items"] == [expected]
    answer = await call(gateway, "GET", f"/{dead_letter_id}")
    assert (answer.status, answer.json()) == (200, expected)


@partitioned
async def test_pages_list_each_dead_letter_once_newest_first(gateway: Gateway) -> None:
    assert await page(gateway) == {"items": [], "total": 0, "next": None}
    assert await gateway.redis.dbsize() == 0
    ids = [await dead(gateway, number) for number in range(70)]
    newest = list(reversed(ids))
    first = await page(gateway)
    assert [item["id"] for item in first["items"]] == newest[:50]
    assert (first["total"], first["next"]) == (70, newest[49])
    for limit in (1, 32, 64, 65, 69, 70, 71, 200):
        pages = await walk(gateway, f"?limit={limit}")
        assert [len(found) for found in pages[:-1]] == [limit] * (len(pages) - 1)
        assert len(pages[-1]) > 0, "`next` never leads to an empty page"
        assert flat(pages) == newest
        if limit == 1:
            assert len(pages) == 70


@partitioned
async def test_pages_stay_stable_while_dead_letters_change(gateway: Gateway) -> None:
    ids = [await dead(gateway, number) for number in range(30)]
    seen: list[str] = []
    query = "?limit=7"
    while True:
        found = await page(gateway, query)
        seen += [item["id"] for item in found["items"]]
        if found["next"] is None:
            break
        query = f"?limit=7&before={found['next']}"
        await dead(gateway, 99)
        assert (await call(gateway, "DELETE", f"/{found['next']}")).status == 204
    assert seen == list(reversed(ids))


@partitioned
async def test_dead_letters_are_filtered_by_reason(gateway: Gateway) -> None:
    ids = [await dead(gateway, n, reason=NO_JOB if n % 40 == 0 else EXHAUSTED) for n in range(121)]
    matching = [ids[120], ids[80], ids[40], ids[0]]
    found = await page(gateway, f"?reason={NO_JOB}")
    assert [item["id"] for item in found["items"]] == matching
    assert (found["total"], found["next"]) == (121, None)
    assert flat(await walk(gateway, f"?reason={NO_JOB}&limit=3")) == matching
    assert await page(gateway, "?reason=job_keys_corrupt") == {
        "items": [],
        "total": 121,
        "next": None,
    }


async def test_a_long_search_continues_on_the_next_page(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LIST_SCAN_MAX", 50)
    oldest = await dead(gateway, 0, reason=NO_JOB)
    for number in range(100):
        await dead(gateway, number)
    pages = await walk(gateway, f"?reason={NO_JOB}")
    assert pages == [[], [], [oldest]]


async def test_large_dead_letters_make_short_pages(gateway: Gateway) -> None:
    ids = [await dead(gateway, n, payload={"t": "x" * 1_500_000}) for n in range(7)]
    pages = await walk(gateway, "?limit=200")
    assert [len(found) for found in pages] == [3, 3, 1]
    assert flat(pages) == list(reversed(ids))


async def test_invalid_dead_letters_can_be_read(gateway: Gateway) -> None:
    for name, fields in HOSTILE.items():
        dead_letter_id = await put(gateway, fields)
        [item] = (await page(gateway, "?limit=1"))["items"]
        assert item["id"] == dead_letter_id, name
        answer = await call(gateway, "GET", f"/{dead_letter_id}")
        assert (answer.status, answer.json()) == (200, item), name
        DeadLetterView.model_validate_json(answer.body)
        assert "\r" not in answer.body.decode()
    pages = await walk(gateway, "?limit=10")
    assert flat(pages) == list(reversed(await left(gateway)))


async def test_unknown_and_invalid_ids_are_not_found(gateway: Gateway) -> None:
    await dead(gateway)
    before = await gateway.snapshot()
    unknown = ["1-1", "0-0", "18446744073709551615-18446744073709551615"]
    for dead_letter_id in (*unknown, *IMPOSSIBLE_IDS, "18446744073709551616-0"):
        for method, target in (("GET", ""), ("DELETE", ""), ("POST", "/redrive")):
            answer = await call(gateway, method, f"/{dead_letter_id}{target}")
            check_problem(answer, 404, "dead_letter_not_found")
    assert await gateway.snapshot() == before


async def test_before_selects_older_dead_letters(gateway: Gateway) -> None:
    dead_letter_id = await dead(gateway)
    for before in ("0-0", "00-0", "0-1", "1-0"):
        found = await page(gateway, f"?before={before}")
        assert (found["items"], found["next"]) == ([], None)
    found = await page(gateway, "?before=18446744073709551615-18446744073709551615")
    assert [item["id"] for item in found["items"]] == [dead_letter_id]


async def test_invalid_query_parameters_are_rejected(gateway: Gateway) -> None:
    for parameter, values in (
        ("limit", ("0", "-1", "201", "x", "", "1.5", "1e2", "9" * 99)),
        ("before", ("x", "1", "%2B", "-", "(1-1", "%FF", "")),
        ("reason", ("x", "", "ATTEMPTS_EXHAUSTED", "%00")),
    ):
        for bad in values:
            answer = await call(gateway, "GET", f"?{parameter}={bad}")
            problem = check_problem(answer, 422, "invalid_request")
            assert [fault["pointer"] for fault in problem["errors"]] == [f"/{parameter}"], bad


@partitioned
async def test_one_dead_letter_is_purged(gateway: Gateway) -> None:
    first, second = await dead(gateway, 1), await dead(gateway, 2)
    answer = await call(gateway, "DELETE", f"/{first}")
    assert (answer.status, answer.body) == (204, b"")
    assert await left(gateway) == [second]
    check_problem(await call(gateway, "DELETE", f"/{first}"), 404, "dead_letter_not_found")


@partitioned
async def test_purge_by_reason_and_all_cover_the_whole_stream(gateway: Gateway) -> None:
    ids = [await dead(gateway, n, reason=NO_JOB if n % 3 == 0 else EXHAUSTED) for n in range(150)]
    answer = await call(gateway, "DELETE", f"?reason={NO_JOB}")
    assert (answer.status, answer.json()) == (200, {"purged": 50})
    assert await left(gateway) == [id for n, id in enumerate(ids) if n % 3]
    assert (await call(gateway, "DELETE", f"?reason={NO_JOB}")).json() == {"purged": 0}
    for fields in HOSTILE.values():
        await put(gateway, fields)
    answer = await call(gateway, "DELETE", "?all=true")
    assert answer.json() == {"purged": 100 + len(HOSTILE)}
    assert await page(gateway) == {"items": [], "total": 0, "next": None}


async def test_purge_requires_one_selection(gateway: Gateway) -> None:
    await dead(gateway)
    before = await gateway.snapshot()
    by_group = f"?fingerprint={'0' * 16}"
    two = (f"?all=true&reason={NO_JOB}", f"{by_group}&reason={NO_JOB}", f"{by_group}&all=true")
    for query in ("", "?all=false", "?x=1", *two):
        check_problem(await call(gateway, "DELETE", query), 400, "purge_needs_a_choice")
    for query in ("?all=maybe", "?all=", "?reason=", "?reason=x", "?reason=x&all=1"):
        check_problem(await call(gateway, "DELETE", query), 422, "invalid_request")
    assert await gateway.snapshot() == before


async def test_a_stream_of_another_type_is_not_changed(gateway: Gateway) -> None:
    await gateway.redis.set(gateway.keys.dead_letters, "x")
    before = await gateway.snapshot()
    assert await page(gateway) == {"items": [], "total": 0, "next": None}
    assert (await call(gateway, "GET", "/groups")).json()["groups"] == []
    for method, target in (("GET", "/1-1"), ("DELETE", "/1-1"), ("POST", "/1-1/redrive")):
        check_problem(await call(gateway, method, target), 404, "dead_letter_not_found")
    assert (await call(gateway, "DELETE", "?all=true")).json() == {"purged": 0}
    report = (await call(gateway, "POST", "/redrive", {"all": True})).json()
    assert (report["redriven"], report["skipped"]) == ([], [])
    assert await gateway.snapshot() == before
