"""`/v1/dlq/groups` and `fingerprint=`: dead letters with the same failure are listed as a group."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.admin.dlq import listing
from gateway.admin.dlq.listing import mask
from gateway.admin.dlq.models import DeadLetterGroups
from tests.support.gateway.dead_letters import EXHAUSTED, HOSTILE, NO_JOB, call, dead, left, put
from tests.support.gateway.harness import Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

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
    for number in range(50):
        await dead(gateway, number)
    assert (await groups(gateway))["complete"] is True
    await dead(gateway, 50)
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
    assert [(group["kind"], group["count"]) for group in found["groups"]] == [
        ("a", 3),
        ("b", 2),
        ("d", 1),
    ]
    assert found["complete"] is False


async def fingerprint_of(gateway: Gateway, kind: str) -> str:
    [found] = [group for group in (await groups(gateway))["groups"] if group["kind"] == kind]
    name: str = found["fingerprint"]
    return name


@partitioned
async def test_a_group_is_listed_redriven_and_purged(gateway: Gateway) -> None:
    ids = [await timed_out(gateway, n, "a" if n % 5 else "b") for n in range(40)]
    group = ids[35::-5]
    name = await fingerprint_of(gateway, "b")
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
