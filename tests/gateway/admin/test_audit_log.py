"""The audit log: administrative actions are recorded before they are executed."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from common.access.audit_log import AuditEntry
from common.contracts.access import AuditAction
from gateway.admin.audit_log import AuditLogPage
from tests.gateway.access_kit import JSON, bearer, call, id_of, key_for, post
from tests.gateway.conftest import Gateway, Make, check_problem, impatient
from tests.gateway.letters import dead


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(auth="required")


@pytest.fixture
async def admin(gateway: Gateway) -> str:
    return await key_for(gateway, "root", scopes=("admin",))


async def trail(gateway: Gateway, key: str | None, query: str = "") -> list[dict[str, Any]]:
    answer = await call(gateway, "GET", f"/v1/trail{query}", key)
    assert answer.status == 200
    AuditLogPage.model_validate_json(answer.body)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def deeds(gateway: Gateway, key: str | None) -> list[tuple[str, str]]:
    return [(item["action"], item["target"]) for item in reversed(await trail(gateway, key))]


async def test_who_did_what(gateway: Gateway, admin: str) -> None:
    headers = {**bearer(admin), **JSON, "x-request-id": "r-17"}
    body = json.dumps({"name": "shop front"}).encode()
    made = (await gateway.client.send("POST", "/v1/keys", headers, body)).json()
    [entry] = await trail(gateway, admin)
    assert entry["who"] == id_of(admin)
    assert entry["name"] == "root"
    assert entry["action"] == "key.create"
    assert entry["target"] == f"{made['key_id']} shop front"
    assert entry["request_id"] == "r-17"
    assert entry["remote"] == "127.0.0.1"
    assert made["key"] not in json.dumps(entry)


async def test_everything_that_leaves_a_trail(gateway: Gateway, admin: str) -> None:
    made = (await call(gateway, "POST", "/v1/keys", admin, {"name": "x"})).json()["key_id"]
    await call(gateway, "POST", f"/v1/keys/{made}/rotate", admin)
    await call(gateway, "DELETE", f"/v1/keys/{made}", admin)
    letters = [await dead(gateway, number) for number in range(4)]
    await call(gateway, "POST", f"/v1/dlq/{letters[0]}/redrive", admin)
    await call(gateway, "POST", "/v1/dlq/redrive", admin, {"ids": [letters[1]]})
    await call(gateway, "POST", "/v1/dlq/redrive", admin, {"all": True, "dry_run": True})
    await call(gateway, "DELETE", f"/v1/dlq/{letters[2]}", admin)
    await call(gateway, "DELETE", "/v1/dlq?reason=attempts_exhausted", admin)
    await call(gateway, "DELETE", "/v1/dlq?all=true", admin)
    await call(gateway, "POST", "/v1/audit", admin)
    assert await deeds(gateway, admin) == [
        ("key.create", f"{made} x"),
        ("key.rotate", made),
        ("key.revoke", made),
        ("dlq.redrive", letters[0]),
        ("dlq.redrive", f"ids={letters[1]}"),
        ("dlq.purge", letters[2]),
        ("dlq.purge", "reason=attempts_exhausted"),
        ("dlq.purge", "all"),
        ("audit.run", ""),
    ]


async def test_reading_and_being_refused_leave_none(gateway: Gateway, admin: str) -> None:
    ours = await key_for(gateway, tenant="ours")
    for method, path in (("GET", "/v1/keys"), ("GET", "/v1/dlq"), ("GET", "/v1/trail")):
        await call(gateway, method, path, admin)
    await call(gateway, "POST", "/v1/keys", ours, {"name": "x"})
    await call(gateway, "DELETE", "/v1/dlq", admin)
    await call(gateway, "DELETE", "/v1/keys/x", admin)
    assert await trail(gateway, admin) == []


async def test_ending_anothers_job_leaves_one(gateway: Gateway, admin: str) -> None:
    ours = await key_for(gateway, tenant="ours")
    job_ids = [(await post(gateway, ours)).json()["job_id"] for _ in range(2)]
    assert (await call(gateway, "DELETE", f"/v1/jobs/{job_ids[0]}", ours)).status == 200
    assert (await call(gateway, "DELETE", f"/v1/jobs/{job_ids[1]}", admin)).status == 200
    assert await deeds(gateway, admin) == [("job.cancel", job_ids[1])]


async def test_who_sits_at_the_machine_is_called_local(make: Make) -> None:
    gateway = make()
    await call(gateway, "DELETE", "/v1/dlq?all=true")
    job_id = await gateway.create()
    await call(gateway, "DELETE", f"/v1/jobs/{job_id}")  # without tenants, a cancel is not recorded
    [entry] = await trail(gateway, None)
    assert (entry["who"], entry["name"], entry["action"]) == ("local", "", "dlq.purge")


async def test_what_cannot_be_written_down_is_not_done(gateway: Gateway, admin: str) -> None:
    ours = await key_for(gateway, tenant="ours")
    job_id = (await post(gateway, ours)).json()["job_id"]
    letter = await dead(gateway)
    await gateway.redis.set("access:trail", "no stream")
    before = await gateway.snapshot()
    for method, path, body in (
        ("POST", "/v1/keys", {"name": "x"}),
        ("POST", f"/v1/keys/{id_of(ours)}/rotate", None),
        ("DELETE", f"/v1/keys/{id_of(ours)}", None),
        ("POST", f"/v1/dlq/{letter}/redrive", None),
        ("POST", "/v1/dlq/redrive", {"all": True}),
        ("DELETE", f"/v1/dlq/{letter}", None),
        ("DELETE", "/v1/dlq?all=true", None),
        ("POST", "/v1/audit", None),
        ("DELETE", f"/v1/jobs/{job_id}", None),
    ):
        check_problem(await call(gateway, method, path, admin, body), 503, "store_corrupt")
    assert await gateway.snapshot() == before
    check_problem(await call(gateway, "GET", "/v1/trail", admin), 503, "store_corrupt")


async def test_a_redis_without_memory_takes_what_frees_some(real_make: Make) -> None:
    """Otherwise a key that fills Redis could not be revoked, nor its jobs be removed."""
    gateway = real_make(auth="required")
    admin = await key_for(gateway, "root", scopes=("admin",))
    flooding = await key_for(gateway, tenant="shop")
    job_id = (await post(gateway, flooding)).json()["job_id"]
    letter = await dead(gateway)
    await gateway.redis.config_set("maxmemory", "1")
    try:
        with impatient(*gateway.carriers):
            check_problem(await post(gateway, flooding), 503, "store_unavailable")
        for path in (f"/v1/keys/{id_of(flooding)}", f"/v1/dlq/{letter}", f"/v1/jobs/{job_id}"):
            answer = await call(gateway, "DELETE", path, admin)
            assert answer.status in (200, 204), answer
    finally:
        await gateway.redis.config_set("maxmemory", "0")
    assert [action for action, _ in await deeds(gateway, admin)] == [
        *("key.revoke", "dlq.purge", "job.cancel")
    ]


async def test_page_by_page(gateway: Gateway, admin: str) -> None:
    for number in range(7):
        await call(gateway, "DELETE", f"/v1/dlq/{number}-0", admin)
    whole = await trail(gateway, admin)
    found: list[dict[str, Any]] = []
    query, pages = "?limit=3", 0
    while True:
        page = (await call(gateway, "GET", f"/v1/trail{query}", admin)).json()
        found += page["items"]
        pages += 1
        if page["next"] is None:
            break
        query = f"?limit=3&before={page['next']}"
    assert found == whole
    assert (len(found), pages) == (7, 3)


@pytest.mark.parametrize("query", ["?limit=0", "?limit=201", "?limit=x", "?before=x"])
async def test_parameters_out_of_range(fake_make: Make, query: str) -> None:
    answer = await call(fake_make(), "GET", f"/v1/trail{query}")
    check_problem(answer, 422, "invalid_request")


async def test_entries_of_a_foreign_hand(gateway: Gateway, admin: str) -> None:
    await gateway.redis.xadd("access:trail", {b"\xff": b"\xff", b"who": b"\xfe", b"ts": b"soon"})
    [entry] = await trail(gateway, admin)
    assert (entry["who"], entry["ts"], entry["action"]) == ("�", 0, "")


async def test_the_copy_in_the_log_says_whence_it_came(
    gateway: Gateway, admin: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "common.access.audit_log"):
        answer = await call(gateway, "POST", "/v1/keys", admin, {"name": "x"})
    assert answer.status == 201
    [line] = [
        record.getMessage() for record in caplog.records if record.name == "common.access.audit_log"
    ]
    assert line.startswith(f"audit log: {id_of(admin)} key.create ")
    assert line.endswith(" from 127.0.0.1")


async def test_whatever_is_written_down_stays_on_its_line(
    fake_make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    trail_of = fake_make().state.access.audit_log
    caplog.set_level("INFO", "common.access.audit_log")
    await trail_of.write(AuditEntry("me", AuditAction.JOB_CANCEL, "a\nb\x1b[2J", remote="\u2028"))
    [entry] = await trail_of.page("+", 1)
    assert (entry.target, entry.remote) == ("a?b?[2J", "?")
    [record] = [each for each in caplog.records if each.name == "common.access.audit_log"]
    assert record.getMessage() == "audit log: me job.cancel a?b?[2J from ?"
