"""`/v1/dlq`: list, read and purge dead letters, also invalid ones."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest

from gateway.admin.dlq import listing
from gateway.admin.dlq.models import DeadLetterPage, DeadLetterView
from tests.gateway.conftest import Gateway, check_problem
from tests.gateway.dead_letters import EXHAUSTED, HOSTILE, NO_JOB, call, dead, left, put

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


async def test_an_empty_stream_is_an_empty_list(gateway: Gateway) -> None:
    assert await page(gateway) == {"items": [], "total": 0, "next": None}
    assert await gateway.redis.dbsize() == 0


async def test_a_dead_letter_is_shown_with_all_its_fields(gateway: Gateway) -> None:
    dead_letter_id = await dead(gateway, 7)
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


async def test_pages_list_each_dead_letter_once_newest_first(gateway: Gateway) -> None:
    ids = [await dead(gateway, number) for number in range(130)]
    newest = list(reversed(ids))
    first = await page(gateway)
    assert [item["id"] for item in first["items"]] == newest[:50]
    assert (first["total"], first["next"]) == (130, newest[49])
    for limit in (1, 32, 64, 65, 129, 130, 131, 200):
        pages = await walk(gateway, f"?limit={limit}")
        assert [len(found) for found in pages[:-1]] == [limit] * (len(pages) - 1)
        assert len(pages[-1]) > 0, "`next` never leads to an empty page"
        assert flat(pages) == newest
        if limit == 1:
            assert len(pages) == 130


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
        await gateway.redis.xdel(gateway.keys.dead_letters, found["next"])
    assert seen == list(reversed(ids))


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


@pytest.mark.parametrize("name", HOSTILE)
async def test_an_invalid_dead_letter_can_be_read(gateway: Gateway, name: str) -> None:
    dead_letter_id = await put(gateway, HOSTILE[name])
    [item] = (await page(gateway))["items"]
    assert item["id"] == dead_letter_id
    answer = await call(gateway, "GET", f"/{dead_letter_id}")
    assert (answer.status, answer.json()) == (200, item)
    DeadLetterView.model_validate_json(answer.body)
    assert "\r" not in answer.body.decode()


async def test_invalid_dead_letters_are_all_listed(fake_gateway: Gateway) -> None:
    for fields in HOSTILE.values():
        await put(fake_gateway, fields)
    pages = await walk(fake_gateway, "?limit=10")
    assert flat(pages) == list(reversed(await left(fake_gateway)))


@pytest.mark.parametrize(
    "dead_letter_id", ["1-1", "0-0", "18446744073709551615-18446744073709551615"]
)
async def test_an_unknown_dead_letter_is_not_found(gateway: Gateway, dead_letter_id: str) -> None:
    await dead(gateway)
    before = await gateway.snapshot()
    for method, target in (("GET", ""), ("DELETE", ""), ("POST", "/redrive")):
        answer = await call(gateway, method, f"/{dead_letter_id}{target}")
        check_problem(answer, 404, "dead_letter_not_found")
    assert await gateway.snapshot() == before


@pytest.mark.parametrize("dead_letter_id", [*IMPOSSIBLE_IDS, "18446744073709551616-0"])
async def test_an_invalid_id_is_not_found(fake_gateway: Gateway, dead_letter_id: str) -> None:
    await dead(fake_gateway)
    before = await fake_gateway.snapshot()
    for method, target in (("GET", ""), ("DELETE", ""), ("POST", "/redrive")):
        answer = await call(fake_gateway, method, f"/{dead_letter_id}{target}")
        check_problem(answer, 404, "dead_letter_not_found")
    assert await fake_gateway.snapshot() == before


@pytest.mark.parametrize("before", ["0-0", "00-0", "0-1", "1-0"])
async def test_before_the_first_entry_there_is_nothing(gateway: Gateway, before: str) -> None:
    await dead(gateway)
    found = await page(gateway, f"?before={before}")
    assert (found["items"], found["next"]) == ([], None)


async def test_before_the_last_possible_id_lists_all(gateway: Gateway) -> None:
    dead_letter_id = await dead(gateway)
    found = await page(gateway, "?before=18446744073709551615-18446744073709551615")
    assert [item["id"] for item in found["items"]] == [dead_letter_id]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        *(
            (f"?limit={bad}", "/limit")
            for bad in ("0", "-1", "201", "x", "", "1.5", "1e2", "9" * 99)
        ),
        *((f"?before={bad}", "/before") for bad in ("x", "1", "%2B", "-", "(1-1", "%FF", "")),
        *((f"?reason={bad}", "/reason") for bad in ("x", "", "ATTEMPTS_EXHAUSTED", "%00")),
    ],
)
async def test_invalid_query_parameters_are_rejected(
    fake_gateway: Gateway, query: str, pointer: str
) -> None:
    problem = check_problem(await call(fake_gateway, "GET", query), 422, "invalid_request")
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]


async def test_one_dead_letter_is_purged(gateway: Gateway) -> None:
    first, second = await dead(gateway, 1), await dead(gateway, 2)
    answer = await call(gateway, "DELETE", f"/{first}")
    assert (answer.status, answer.body) == (204, b"")
    assert await left(gateway) == [second]
    check_problem(await call(gateway, "DELETE", f"/{first}"), 404, "dead_letter_not_found")


async def test_purge_by_reason_covers_the_whole_stream(gateway: Gateway) -> None:
    ids = [await dead(gateway, n, reason=NO_JOB if n % 3 == 0 else EXHAUSTED) for n in range(150)]
    answer = await call(gateway, "DELETE", f"?reason={NO_JOB}")
    assert (answer.status, answer.json()) == (200, {"purged": 50})
    assert await left(gateway) == [id for n, id in enumerate(ids) if n % 3]
    assert (await call(gateway, "DELETE", f"?reason={NO_JOB}")).json() == {"purged": 0}


async def test_purge_all_deletes_valid_and_invalid_ones(gateway: Gateway) -> None:
    for number in range(100):
        await dead(gateway, number, reason=NO_JOB if number % 3 == 0 else EXHAUSTED)
    for fields in HOSTILE.values():
        await put(gateway, fields)
    answer = await call(gateway, "DELETE", "?all=true")
    assert answer.json() == {"purged": 100 + len(HOSTILE)}
    assert await page(gateway) == {"items": [], "total": 0, "next": None}


@pytest.mark.parametrize("query", ["", "?all=false", f"?all=true&reason={NO_JOB}", "?x=1"])
async def test_purge_requires_one_selection(gateway: Gateway, query: str) -> None:
    await dead(gateway)
    before = await gateway.snapshot()
    check_problem(await call(gateway, "DELETE", query), 400, "purge_needs_a_choice")
    assert await gateway.snapshot() == before


@pytest.mark.parametrize(
    "query", ["?all=maybe", "?all=", "?reason=", "?reason=x", "?reason=x&all=1"]
)
async def test_purge_rejects_an_invalid_selection(fake_gateway: Gateway, query: str) -> None:
    await dead(fake_gateway)
    before = await fake_gateway.snapshot()
    check_problem(await call(fake_gateway, "DELETE", query), 422, "invalid_request")
    assert await fake_gateway.snapshot() == before


async def test_a_stream_of_another_type_is_not_changed(gateway: Gateway) -> None:
    await gateway.redis.set(gateway.keys.dead_letters, "x")
    before = await gateway.snapshot()
    assert await page(gateway) == {"items": [], "total": 0, "next": None}
    for method, target in (("GET", "/1-1"), ("DELETE", "/1-1"), ("POST", "/1-1/redrive")):
        check_problem(await call(gateway, method, target), 404, "dead_letter_not_found")
    assert (await call(gateway, "DELETE", "?all=true")).json() == {"purged": 0}
    report = (await call(gateway, "POST", "/redrive", {"all": True})).json()
    assert (report["redriven"], report["skipped"]) == ([], [])
    assert await gateway.snapshot() == before


async def test_the_stream_key_is_a_setting(make: Any) -> None:
    gateway = make(dlq_stream_key="other:dead")
    dead_letter_id = await dead(gateway)
    assert await gateway.redis.xlen("other:dead") == 1
    assert (
        json.loads((await call(gateway, "GET", f"/{dead_letter_id}")).body)["id"] == dead_letter_id
    )
