"""Redrive of dead letters: one job each, idempotent, at a given rate, with the same rights."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from sluice.common.access.record import tenant_tail
from sluice.common.jobs.options import JobOptions
from sluice.gateway.admin.dlq.models import RedriveReport, RedriveRequest
from sluice.gateway.jobs.ids import new_job_id
from tests.gateway.admin.dlq.test_dead_letters import IMPOSSIBLE_IDS
from tests.support.gateway.access import call as send
from tests.support.gateway.access import key_for, post
from tests.support.gateway.dead_letters import EXHAUSTED, HOSTILE, NO_JOB, call, dead, left, put
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only


async def run(gateway: Gateway, **body: Any) -> dict[str, Any]:
    answer = await call(gateway, "POST", "/redrive", body)
    assert answer.status == 200, answer
    RedriveReport.model_validate_json(answer.body)
    report: dict[str, Any] = answer.json()
    assert list(report) == ["redriven", "skipped", "dry_run"]
    return report


def ids_in(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["dead_letter_id"] for entry in entries]


async def queued(gateway: Gateway) -> list[str]:
    found = []
    for line in gateway.state.lines:
        entries = await gateway.redis.xrange(line.keys.queue)
        found += [fields[b"job_id"].decode() for _, fields in entries]
    return found


@partitioned
async def test_a_dead_letter_becomes_a_complete_job(make: Make) -> None:
    gateway, other = make(job_ttl_s=777, max_scheduled=0), make(job_ttl_s=777)
    dead_letter_id = await dead(gateway, payload={"a": "é", "n": 10**30})
    answers = await asyncio.gather(
        *(call(each, "POST", f"/{dead_letter_id}/redrive") for each in (gateway, other) * 5)
    )
    [(status, body)] = {(answer.status, answer.body) for answer in answers}
    job_id = json.loads(body)["job_id"]
    assert (status, json.loads(body)) == (202, {"job_id": job_id, "dead_letter_id": dead_letter_id})
    assert answers[0].header("location") == f"/v1/jobs/{job_id}"
    assert await left(gateway) == []
    assert await queued(gateway) == [job_id]

    job = (await gateway.client.get(f"/v1/jobs/{job_id}")).json()
    assert (job["status"], job["task"], job["ttl_s"]) == ("queued", "chat", 777)
    assert job["payload"] == {"a": "é", "n": 10**30}
    keys = gateway.keys_of(job_id)
    [(_, event)] = await gateway.redis.xrange(keys.events(job_id))
    assert (event[b"type"], event[b"step"]) == (b"queued", b"gateway.redrive")
    assert json.loads(event[b"data"]) == {"dead_letter_id": dead_letter_id}
    before = await gateway.snapshot()
    again = await call(gateway, "POST", f"/00{dead_letter_id}/redrive")
    assert (again.status, again.body) == (202, body)
    assert await gateway.snapshot() == before
    await gateway.redis.delete(keys.job(job_id))  # expired
    answer = await call(gateway, "POST", f"/{dead_letter_id}/redrive")
    check_problem(answer, 404, "dead_letter_not_found")


async def test_an_invalid_dead_letter_is_not_redrivable(gateway: Gateway) -> None:
    ids = [await put(gateway, fields) for fields in HOSTILE.values()]
    before = await gateway.snapshot()
    for dead_letter_id in ids:
        answer = await call(gateway, "POST", f"/{dead_letter_id}/redrive")
        check_problem(answer, 422, "not_redrivable")
    report = await run(gateway, all=True)
    assert {entry["code"] for entry in report["skipped"]} == {"not_redrivable"}
    assert ids_in(report["skipped"]) == list(reversed(ids))
    assert await gateway.snapshot() == before


@partitioned
async def test_many_jobs_are_spread_over_time(gateway: Gateway) -> None:
    ids = [await dead(gateway, number) for number in range(45)]
    report = await run(gateway, all=True, rate_per_s=20)
    assert report["skipped"] == []
    assert report["dry_run"] is False
    assert ids_in(report["redriven"]) == list(reversed(ids))
    assert [entry["delay_ms"] for entry in report["redriven"]] == [n * 50 for n in range(45)]
    job_ids = [entry["job_id"] for entry in report["redriven"]]
    assert await queued(gateway) == job_ids[:1]
    for line in gateway.state.lines:
        scheduled = await gateway.redis.zrange(line.keys.scheduled, 0, -1)
        own = [id for id in job_ids[1:] if gateway.keys_of(id) is line.keys]
        assert [member.decode() for member in scheduled] == own
    assert await left(gateway) == []


async def test_delays_follow_the_rate(gateway: Gateway) -> None:
    for number in range(3):
        await dead(gateway, number)
    for body, delays in (
        ({"rate_per_s": 1000}, [0, 1, 2]),
        ({"rate_per_s": 3}, [0, 333, 667]),
        ({"rate_per_s": 0.001}, [0, 10**6, 2 * 10**6]),
        ({}, [0, 100, 200]),
    ):
        report = await run(gateway, all=True, dry_run=True, **body)
        assert [entry["delay_ms"] for entry in report["redriven"]] == delays
    slowest = RedriveRequest(all=True, limit=1000, rate_per_s=0.001)
    assert slowest.effective_limit / slowest.rate_per_s < 30 * 24 * 3600


@partitioned
async def test_redrive_covers_the_stream_up_to_its_limit(gateway: Gateway) -> None:
    matching = [await dead(gateway, number, reason=NO_JOB) for number in range(3)]
    ids = [await dead(gateway, number) for number in range(120)]
    report = await run(gateway, reason=NO_JOB)
    assert ids_in(report["redriven"]) == list(reversed(matching))
    assert await left(gateway) == ids
    assert len((await run(gateway, all=True, dry_run=True))["redriven"]) == 100
    assert ids_in((await run(gateway, ids=ids, dry_run=True))["redriven"]) == ids
    report = await run(gateway, all=True, limit=7)
    assert ids_in(report["redriven"]) == list(reversed(ids))[:7]
    assert report["skipped"] == []
    assert await left(gateway) == ids[:-7]
    report = await run(gateway, ids=ids[:4], limit=2)
    assert ids_in(report["redriven"]) == ids[:2]
    assert report["skipped"] == [
        {"dead_letter_id": dead_letter_id, "code": "over_limit"} for dead_letter_id in ids[2:4]
    ]
    assert await run(gateway, ids=[]) == {"redriven": [], "skipped": [], "dry_run": False}


async def test_skipped_dead_letters_do_not_count_for_the_limit(gateway: Gateway) -> None:
    """Otherwise every redrive would try the same ones and never reach the rest."""
    good = await dead(gateway)
    for _ in range(40):
        await put(gateway, {b"fields": b"{}"})
    report = await run(gateway, all=True, limit=1)
    assert ids_in(report["redriven"]) == [good]
    assert report["redriven"][0]["delay_ms"] == 0
    assert len(report["skipped"]) == 40


async def test_redrive_by_ids_skips_unknown_and_invalid_ones(gateway: Gateway) -> None:
    first, second, third = [await dead(gateway, number) for number in range(3)]
    invalid = await put(gateway, {b"x": b"y"})
    report = await run(gateway, ids=[second, "1-1", invalid, second, f"0{second}", first])
    assert ids_in(report["redriven"]) == [second, first]
    assert [entry["delay_ms"] for entry in report["redriven"]] == [0, 100]
    assert report["skipped"] == [
        {"dead_letter_id": "1-1", "code": "dead_letter_not_found"},
        {"dead_letter_id": invalid, "code": "not_redrivable"},
    ]
    assert await left(gateway) == [third, invalid]
    before = await gateway.snapshot()
    again = await run(gateway, ids=[second, first])
    assert [entry["job_id"] for entry in again["redriven"]] == [
        entry["job_id"] for entry in report["redriven"]
    ]
    assert await gateway.snapshot() == before


async def test_a_dry_run_changes_nothing(gateway: Gateway) -> None:
    for number in range(40):
        await dead(gateway, number, reason=NO_JOB if number % 2 else EXHAUSTED)
    invalid = await put(gateway, {b"x": b"y"})
    before = await gateway.snapshot()
    for choice in ({"all": True}, {"reason": NO_JOB}, {"ids": [*await left(gateway), "1-1"]}):
        preview = await run(gateway, **choice, dry_run=True)
        assert preview["dry_run"] is True
        assert preview["redriven"]
    assert await gateway.snapshot() == before
    preview = await run(gateway, all=True, dry_run=True)
    assert preview["skipped"] == [{"dead_letter_id": invalid, "code": "not_redrivable"}]
    done = await run(gateway, all=True)
    assert {**preview, "dry_run": False} == done


@pytest.mark.parametrize("by_ids", [False, True])
async def test_a_full_schedule_stops_the_redrive(make: Make, by_ids: bool) -> None:
    gateway = make(max_scheduled=3)
    await gateway.create({**CHAT, "delay_s": 600})
    ids = [await dead(gateway, number) for number in range(8)]
    newest = list(reversed(ids))
    report = await run(gateway, limit=6, **({"ids": newest} if by_ids else {"all": True}))
    assert ids_in(report["redriven"]) == newest[:3]  # one at once, two into the schedule
    skipped = [(entry["dead_letter_id"], entry["code"]) for entry in report["skipped"]]
    expected = [(dead_letter_id, "schedule_full") for dead_letter_id in newest[3:6]]
    if by_ids:
        expected += [(dead_letter_id, "over_limit") for dead_letter_id in newest[6:]]
    assert skipped == expected
    assert await left(gateway) == ids[:5]
    assert await gateway.redis.zcard(gateway.keys.scheduled) == 3


GROUP = "0" * 16
#: No choice, or more than one.
INVALID_CHOICES: list[Any] = [
    *({}, {"all": False}, {"all": None}, [], b"null"),
    *({"all": True, "reason": NO_JOB}, {"all": True, "ids": []}),
    *({"fingerprint": GROUP, "reason": NO_JOB}, {"fingerprint": GROUP, "ids": ["1-1"]}),
    {"all": True, "reason": NO_JOB, "ids": ["1-1"]},
]
#: By pointer: members of an otherwise valid request.
INVALID_MEMBERS: dict[str, tuple[dict[str, Any], ...]] = {
    "/all": ({"all": 1}, {"all": "true"}),
    "/reason": ({"reason": "x"}, {"reason": [NO_JOB]}),
    "/ids": ({"ids": "1-1"}, {"ids": {"1-1": 1}}, {"ids": ["1-1"] * 1001}),
    "/ids/1": tuple({"ids": ["1-1", bad]} for bad in (1, None, "", *IMPOSSIBLE_IDS)),
    "/limit": tuple({"all": True, "limit": bad} for bad in (0, 1001, True, 5.0)),
    "/rate_per_s": tuple(
        {"all": True, "rate_per_s": bad} for bad in (0, -1, 5e-324, 1000.1, True, "10")
    ),
    "/dry_run": ({"all": True, "dry_run": "yes"}, {"all": True, "dry_run": 1}),
    "/force": ({"all": True, "force": True},),
}


async def test_invalid_redrive_requests_are_rejected(gateway: Gateway) -> None:
    await dead(gateway)
    before = await gateway.snapshot()
    for pointer, bodies in {"": INVALID_CHOICES, **INVALID_MEMBERS}.items():
        for body in bodies:
            answer = await call(gateway, "POST", "/redrive", body)
            problem = check_problem(answer, 422, "invalid_request")
            assert [fault["pointer"] for fault in problem["errors"]] == [pointer], body
    for raw, content_type, status, code in (
        (b"", "application/json", 400, "malformed_json"),
        (b"{all}", "application/json", 400, "malformed_json"),
        (b'{"all":true,"rate_per_s":NaN}', "application/json", 400, "malformed_json"),
        (b'{"all":true}', "text/plain", 415, "unsupported_media_type"),
        (b'{"all":true}' + b" " * 300_000, "application/json", 413, "body_too_large"),
    ):
        headers = {"content-type": content_type}
        answer = await gateway.client.send("POST", "/v1/dlq/redrive", headers, raw)
        check_problem(answer, status, code)
    assert await gateway.snapshot() == before


async def test_a_job_key_of_another_type_is_skipped(gateway: Gateway) -> None:
    good, bad = await dead(gateway, 1), await dead(gateway, 2)
    await gateway.redis.set(gateway.keys.job(gateway.state.queue.redriven_job_id(bad)), "x")
    check_problem(await call(gateway, "POST", f"/{bad}/redrive"), 503, "store_corrupt")
    report = await run(gateway, all=True)
    assert report["skipped"] == [{"dead_letter_id": bad, "code": "store_corrupt"}]
    assert ids_in(report["redriven"]) == [good]
    assert await left(gateway) == [bad]


async def put_dead_letter(gateway: Gateway, job_id: str = "", options: bytes | None = None) -> str:
    """A dead letter with or without the options of its job."""
    job_id = job_id or str(uuid.uuid4())
    message = {"job_id": job_id, "task": "chat", "payload": "{}"}
    fields = {b"reason": NO_JOB.encode(), b"fields": json.dumps(message).encode()}
    more = {} if options is None else {b"options": options}
    return await put(gateway, {**fields, b"job_id": job_id.encode(), **more})


async def rights(gateway: Gateway, dead_letter_id: str) -> tuple[str | None, Any]:
    """Tenant and tools of the redriven job."""
    admin = await key_for(gateway, scopes=frozenset({"admin"}))
    answer = await send(gateway, "POST", f"/v1/dlq/{dead_letter_id}/redrive", admin)
    assert answer.status == 202, answer
    key = gateway.keys.lease(answer.json()["job_id"])
    if await gateway.redis.exists(key):
        assert await gateway.redis.ttl(key) > 0
        assert await gateway.redis.hget(key, "attempt") == b"0"
    options = JobOptions.from_json(await gateway.redis.hget(key, "options") or b"")
    return options.tenant, options.tools


async def test_tenant_and_tools_of_the_dead_letter_are_kept(strict: Gateway) -> None:
    await key_for(strict, tools=frozenset({"clock"}))
    shop = JobOptions(5.0, tenant="shop", tools=("clock", "search"))
    for options, expected in (
        (shop.to_json(), ("shop", ("clock", "search"))),
        (JobOptions(tenant="shop", tools=()).to_json(), ("shop", ())),
        # Other options of the original job may have caused the failure.
        (JobOptions(timeout_s=0.5).to_json(), (None, None)),
        (b"", (None, None)),
        *((junk, ("?", ())) for junk in (b"{", b"[]", b'{"tenant":7,"tools":"all"}')),
    ):
        dead_letter_id = await put_dead_letter(strict, options=options)
        assert await rights(strict, dead_letter_id) == expected, options


async def test_an_expired_job_gets_the_rights_of_the_keys(strict: Gateway) -> None:
    """Its tenant was not recorded, and is recognised by the job id."""
    shop = new_job_id(tenant_tail("shop"))
    for keys, job_id, expected in (
        ({}, "", (None, None)),
        ({"tenant": "shop"}, shop, ("shop", None)),
        ({"tenant": "shop", "tools": frozenset({"clock"})}, shop, ("shop", ())),
        ({}, "", (None, None)),
        ({"tools": frozenset({"clock"})}, "", (None, ())),
    ):
        await key_for(strict, **keys)
        assert await rights(strict, await put_dead_letter(strict, job_id)) == expected


async def test_the_rights_of_a_tenants_job_are_stored_with_it(strict: Gateway) -> None:
    key = await key_for(strict, tenant="shop", tools=frozenset({"search", "clock"}))
    job_id = (await post(strict, key)).json()["job_id"]
    options = await strict.redis.hget(strict.keys.lease(job_id), "options")
    found = JobOptions.from_json(options)
    assert (found.tenant, found.tools) == ("shop", ("clock", "search"))
    job_id = (await post(strict, await key_for(strict))).json()["job_id"]
    assert not await strict.redis.exists(strict.keys.lease(job_id))
