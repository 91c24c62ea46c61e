"""`/v1/dlq`: list, group, read and purge dead letters, also invalid ones."""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

import pytest

from sluice.gateway.admin.dlq import listing
from sluice.gateway.admin.dlq.listing import mask
from sluice.gateway.admin.dlq.models import DeadLetterGroups, DeadLetterPage, DeadLetterView
from tests.support.gateway.dead_letters import EXHAUSTED, HOSTILE, NO_JOB, call, dead, left, put
from tests.support.gateway.harness import Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

IMPOSSIBLE_IDS = ["x", "1", "1-", "-1", "1-1-1", "1-x", "+", "-", "(1-1", "9" * 21 + "-0", "1%20-1"]


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
    pages = await gateway.client.pages(f"/v1/dlq{query}")
    return [[item["id"] for item in found["items"]] for found in pages]


def flat(pages: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(pages))


@partitioned
async def test_a_dead_letter_is_shown_with_all_its_fields(make: Make) -> None:
    gateway = make(dlq_stream_key="other:dead")
    dead_letter_id = await dead(gateway, 7)
    assert [key for key in await gateway.redis.keys("*") if key.endswith(b"other:dead")]
    fields = {"job_id": "job-7", "task": "chat", "payload": '{"n": 7}'}
    errors = {"first_error": {"kind": "first"}, "last_error": {"kind": "last"}}
    expected = {"id": dead_letter_id, "job_id": "job-7", "reason": EXHAUSTED, "attempts": 5}
    expected |= {"message_id": "1-1", "ts": 1760000000000, **errors, "fields": fields}
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
    nothing = {"items": [], "total": 121, "next": None}
    assert await page(gateway, "?reason=job_keys_corrupt") == nothing


async def test_large_dead_letters_make_short_pages(gateway: Gateway) -> None:
    ids = [await dead(gateway, n, payload={"t": "x" * 1_500_000}) for n in range(7)]
    pages = await walk(gateway, "?limit=200")
    assert [len(found) for found in pages] == [3, 3, 1]
    assert flat(pages) == list(reversed(ids))


async def test_a_long_search_continues_on_the_next_page(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LIST_SCAN_MAX", 50)
    oldest, *_ = [await dead(gateway, n, reason=EXHAUSTED if n else NO_JOB) for n in range(101)]
    assert await walk(gateway, f"?reason={NO_JOB}") == [[], [], [oldest]]
    for before in ("0-0", "00-0", "0-1", "1-0"):
        assert await page(gateway, f"?before={before}") == {"items": [], "total": 101, "next": None}
    newest = await page(gateway, "?limit=200&before=18446744073709551615-18446744073709551615")
    assert len(newest["items"]) == 50


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
async def test_purge_by_reason_and_all_cover_the_whole_stream(gateway: Gateway) -> None:
    first, *ids = [
        await dead(gateway, n, reason=NO_JOB if n % 3 == 0 else EXHAUSTED) for n in range(151)
    ]
    answer = await call(gateway, "DELETE", f"/{first}")
    assert (answer.status, answer.body) == (204, b"")
    check_problem(await call(gateway, "DELETE", f"/{first}"), 404, "dead_letter_not_found")
    assert await left(gateway) == ids
    answer = await call(gateway, "DELETE", f"?reason={NO_JOB}")
    assert (answer.status, answer.json()) == (200, {"purged": 50})
    assert await left(gateway) == [id for n, id in enumerate(ids, 1) if n % 3]
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


UUID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
NEVER = "0123456789abcdef"


async def groups(gateway: Gateway) -> dict[str, Any]:
    answer = await call(gateway, "GET", "/groups")
    assert answer.status == 200, answer
    DeadLetterGroups.model_validate_json(answer.body)
    found: dict[str, Any] = answer.json()
    assert list(found) == ["groups", "total", "looked_at", "complete"]
    return found


async def timed_out(gateway: Gateway, number: int, kind: str = "timeout") -> str:
    error = {"kind": kind, "message": f"no answer to {UUID} within {number}.5 s"}
    return await dead(gateway, number, error=error)


@partitioned
async def test_similar_failures_are_one_group(make: Make) -> None:
    gateway, other = make(), make()
    nothing = {"groups": [], "total": 0, "looked_at": 0, "complete": True}
    assert await groups(gateway) == nothing
    assert await gateway.redis.dbsize() == 0
    ids = [await timed_out(gateway, number) for number in range(40)]
    found = await groups(gateway)
    assert found == await groups(other)
    assert (found["total"], found["looked_at"], found["complete"]) == (40, 40, True)
    [group] = found["groups"]
    assert len(group.pop("fingerprint")) == 16
    assert group == {
        "count": 40,
        "reason": EXHAUSTED,
        "task": "chat",
        "kind": "timeout",
        "message": "no answer to <id> within # s",
        "newest_id": ids[-1],
        "newest_job_id": "job-39",
        "newest_ts": 1760000000000,
        "oldest_id": ids[0],
        "oldest_ts": 1760000000000,
    }


async def test_different_failures_are_different_groups(gateway: Gateway) -> None:
    """One dead letter for each difference, and a second one for the largest group."""
    for number in range(2):
        await timed_out(gateway, number)
    await timed_out(gateway, 1, kind="refused")
    await dead(gateway, error={"kind": "timeout", "message": "no answer at all"})
    same = {"kind": "timeout", "message": f"no answer to {UUID} within 1.5 s"}
    await dead(gateway, error=same, task="plan")
    await dead(gateway, error=same, reason=NO_JOB)
    found = (await groups(gateway))["groups"]
    assert [group["count"] for group in found] == [2, 1, 1, 1, 1]
    assert len({group["fingerprint"] for group in found}) == 5
    assert [group["reason"] for group in found[1:]] == [NO_JOB, *[EXHAUSTED] * 3], "newest first"


@pytest.mark.parametrize(
    ("message", "masked"),
    [
        ("", ""),
        ("timeout", "timeout"),
        ("attempt 3 of 5", "attempt # of #"),
        ("took 1.25 s at 12:30:05, -7 left", "took # s at #, -# left"),
        (f"job {UUID} and {UUID.upper()}", "job <id> and <id>"),
        ("at 0xdeadBEEF and 9f8e7d6c5b4a", "at <id> and <id>"),
        ("stream 1760000000000-0", "stream #"),
        ("key a1b2c3d4e5f6g7h8i9", "key <id>"),
        ("deadbeef facade acceptable", "deadbeef facade acceptable"),
        ("two\n  lines\tof text", "two lines of text"),
        ("١٢٣ é 漢", "١٢٣ é 漢"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_ids_and_numbers_are_masked(message: str, masked: str) -> None:
    assert mask(message) == masked


def test_masking_long_messages_is_fast() -> None:
    for unit in ("a", "1", "a1", "f", "1-", "0x", "a-", " 1", "g1f"):
        begun = time.process_time()
        for _ in range(100):
            mask(unit * 200_000)
        assert time.process_time() - begun < 0.5, unit


async def test_invalid_dead_letters_are_grouped_and_purged(gateway: Gateway) -> None:
    """Invalid entries can be listed in a group and purged by its fingerprint."""
    await dead(gateway)
    for name, fields in HOSTILE.items():
        dead_letter_id = await put(gateway, fields)
        found = (await groups(gateway))["groups"]
        [group] = [group for group in found if group["newest_id"] == dead_letter_id]
        assert group["count"] == 1, name
        assert all(len(str(value)) <= 300 for value in group.values())
        query = f"?fingerprint={group['fingerprint']}"
        listed = (await call(gateway, "GET", query)).json()
        assert [item["id"] for item in listed["items"]] == [dead_letter_id]
        assert (await call(gateway, "DELETE", query)).json() == {"purged": 1}
        assert len(await left(gateway)) == 1


ERRORS: list[tuple[Any, str | None, str | None]] = [
    ("oops 7", None, '"oops #"'),
    (["a"], None, '["a"]'),
    ({}, None, "{}"),
    ({"other": 1}, None, '{"other": #}'),
    ({"kind": "k"}, "k", None),
    ({"kind": 7, "message": ["x"]}, None, None),
    ({"message": "m"}, None, "m"),
    ({"kind": "k" * 1000, "message": "m"}, "k" * 100, "m"),
]


async def test_errors_of_any_shape_are_grouped(gateway: Gateway) -> None:
    for error, kind, message in ERRORS:
        dead_letter_id = await dead(gateway, error=error)
        [group] = (await groups(gateway))["groups"]
        assert (group["kind"], group["message"]) == (kind, message)
        await call(gateway, "DELETE", f"/{dead_letter_id}")


async def test_grouping_is_limited(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "GROUP_SCAN_MAX", 50)
    for number in range(51):
        assert (await groups(gateway))["complete"] is True
        await dead(gateway, number)
    found = await groups(gateway)
    assert (found["total"], found["looked_at"], found["complete"]) == (51, 50, False)
    assert found["groups"][0]["count"] == 50
    monkeypatch.setattr(listing, "GROUP_SCAN_BYTES_MAX", 100_000)
    for number in range(10):
        await dead(gateway, number, payload={"t": "x" * 30_000})
    found = await groups(gateway)
    assert (found["looked_at"], found["complete"]) == (4, False)


async def test_the_number_of_groups_is_limited(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "GROUPS_MAX", 3)
    for name in "abcaba":
        await dead(gateway, error={"kind": name})
    found = await groups(gateway)
    assert found["complete"] is True
    await dead(gateway, error={"kind": "d"})
    found = await groups(gateway)
    kinds = [(group["kind"], group["count"]) for group in found["groups"]]
    assert (kinds, found["complete"]) == ([("a", 3), ("b", 2), ("d", 1)], False)


@partitioned
async def test_a_group_is_listed_redriven_and_purged(gateway: Gateway) -> None:
    ids = [await timed_out(gateway, n, "a" if n % 5 else "b") for n in range(40)]
    group = ids[35::-5]
    found = (await groups(gateway))["groups"]
    [name] = [group["fingerprint"] for group in found if group["kind"] == "b"]
    first = (await call(gateway, "GET", f"?fingerprint={name}&limit=5")).json()
    assert [item["id"] for item in first["items"]] == group[:5]
    rest = (await call(gateway, "GET", f"?fingerprint={name}&before={first['next']}")).json()
    assert [item["id"] for item in rest["items"]] == group[5:]
    assert (rest["total"], rest["next"]) == (40, None)
    for query in (f"?fingerprint={NEVER}", f"?fingerprint={name}&reason={NO_JOB}"):
        assert (await call(gateway, "GET", query)).json()["items"] == []
    before = await gateway.snapshot()
    for options, expected in (({"dry_run": True}, group), ({"limit": 4}, group[:4])):
        assert await gateway.snapshot() == before
        answer = await call(gateway, "POST", "/redrive", {"fingerprint": name, **options})
        assert [entry["dead_letter_id"] for entry in answer.json()["redriven"]] == expected
    answer = await call(gateway, "DELETE", f"?fingerprint={name}")
    assert (answer.status, answer.json()) == (200, {"purged": 4})
    assert sorted(await left(gateway)) == sorted(id for n, id in enumerate(ids) if n % 5)
    assert (await call(gateway, "DELETE", f"?fingerprint={name}")).json() == {"purged": 0}
    entries = (await gateway.client.get("/v1/trail")).json()["items"]
    assert [entry["action"] for entry in entries] == ["dlq.purge"] * 2 + ["dlq.redrive"]
    assert {entry["target"] for entry in entries} == {f"fingerprint={name}"}


BAD = ["", "x", NEVER.upper(), NEVER[1:], NEVER + "0", "*" * 16, NEVER[:15] + "%0A", "%FF" * 16]


async def test_invalid_fingerprints_are_rejected(gateway: Gateway) -> None:
    await dead(gateway)
    before = await gateway.snapshot()
    answers = [
        await call(gateway, method, f"?fingerprint={bad}")
        for method in ("GET", "DELETE")
        for bad in (*BAD, NEVER + "%0A")
    ]
    for odd in ("", "x", NEVER.upper(), NEVER + "\n", 7, True, [NEVER], {}):
        answers.append(await call(gateway, "POST", "/redrive", {"fingerprint": odd}))
    for answer in answers:
        problem = check_problem(answer, 422, "invalid_request")
        assert [fault["pointer"] for fault in problem["errors"]] == ["/fingerprint"]
    assert await gateway.snapshot() == before
