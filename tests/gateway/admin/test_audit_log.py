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
from tests.gateway.conftest import Gateway, Make, check_problem, short_retries
from tests.gateway.dead_letters import dead


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(auth="required")


@pytest.fixture
async def admin(gateway: Gateway) -> str:
    return await key_for(gateway, "root", scopes=("admin",))


async def entries(gateway: Gateway, key: str | None, query: str = "") -> list[dict[str, Any]]:
    answer = await call(gateway, "GET", f"/v1/trail{query}", key)
    assert answer.status == 200
    AuditLogPage.model_validate_json(answer.body)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def actions(gateway: Gateway, key: str | None) -> list[tuple[str, str]]:
    return [(item["action"], item["target"]) for item in reversed(await entries(gateway, key))]


async def test_an_entry_names_the_key_the_action_and_its_target(
    gateway: Gateway, admin: str
) -> None:
    headers = {**bearer(admin), **JSON, "x-request-id": "r-17"}
    body = json.dumps({"name": "shop front"}).encode()
    created = (await gateway.client.send("POST", "/v1/keys", headers, body)).json()
    [entry] = await entries(gateway, admin)
    assert entry["who"] == id_of(admin)
    assert entry["name"] == "root"
    assert entry["action"] == "key.create"
    assert entry["target"] == f"{created['key_id']} shop front"
    assert entry["request_id"] == "r-17"
    assert entry["remote"] == "127.0.0.1"
    assert created["key"] not in json.dumps(entry)


async def test_every_administrative_action_is_recorded(gateway: Gateway, admin: str) -> None:
    created = (await call(gateway, "POST", "/v1/keys", admin, {"name": "x"})).json()["key_id"]
    await call(gateway, "POST", f"/v1/keys/{created}/rotate", admin)
    await call(gateway, "DELETE", f"/v1/keys/{created}", admin)
    dead_letters = [await dead(gateway, number) for number in range(4)]
    await call(gateway, "POST", f"/v1/dlq/{dead_letters[0]}/redrive", admin)
    await call(gateway, "POST", "/v1/dlq/redrive", admin, {"ids": [dead_letters[1]]})
    await call(gateway, "POST", "/v1/dlq/redrive", admin, {"all": True, "dry_run": True})
    await call(gateway, "DELETE", f"/v1/dlq/{dead_letters[2]}", admin)
    await call(gateway, "DELETE", "/v1/dlq?reason=attempts_exhausted", admin)
    await call(gateway, "DELETE", "/v1/dlq?all=true", admin)
    await call(gateway, "POST", "/v1/audit", admin)
    assert await actions(gateway, admin) == [
        ("key.create", f"{created} x"),
        ("key.rotate", created),
        ("key.revoke", created),
        ("dlq.redrive", dead_letters[0]),
        ("dlq.redrive", f"ids={dead_letters[1]}"),
        ("dlq.purge", dead_letters[2]),
        ("dlq.purge", "reason=attempts_exhausted"),
        ("dlq.purge", "all"),
        ("audit.run", ""),
    ]


async def test_reads_and_rejected_requests_are_not_recorded(gateway: Gateway, admin: str) -> None:
    tenant_key = await key_for(gateway, tenant="acme")
    for method, path in (("GET", "/v1/keys"), ("GET", "/v1/dlq"), ("GET", "/v1/trail")):
        await call(gateway, method, path, admin)
    await call(gateway, "POST", "/v1/keys", tenant_key, {"name": "x"})
    await call(gateway, "DELETE", "/v1/dlq", admin)
    await call(gateway, "DELETE", "/v1/keys/x", admin)
    assert await entries(gateway, admin) == []


async def test_canceling_a_job_of_another_tenant_is_recorded(gateway: Gateway, admin: str) -> None:
    tenant_key = await key_for(gateway, tenant="acme")
    job_ids = [(await post(gateway, tenant_key)).json()["job_id"] for _ in range(2)]
    assert (await call(gateway, "DELETE", f"/v1/jobs/{job_ids[0]}", tenant_key)).status == 200
    assert (await call(gateway, "DELETE", f"/v1/jobs/{job_ids[1]}", admin)).status == 200
    assert await actions(gateway, admin) == [("job.cancel", job_ids[1])]


async def test_requests_without_a_key_are_recorded_as_local(make: Make) -> None:
    gateway = make()
    await call(gateway, "DELETE", "/v1/dlq?all=true")
    job_id = await gateway.create()
    await call(gateway, "DELETE", f"/v1/jobs/{job_id}")  # without tenants, a cancel is not recorded
    [entry] = await entries(gateway, None)
    assert (entry["who"], entry["name"], entry["action"]) == ("local", "", "dlq.purge")


async def test_an_action_that_cannot_be_recorded_is_refused(gateway: Gateway, admin: str) -> None:
    tenant_key = await key_for(gateway, tenant="acme")
    job_id = (await post(gateway, tenant_key)).json()["job_id"]
    dead_letter = await dead(gateway)
    await gateway.redis.set("access:trail", "no stream")
    before = await gateway.snapshot()
    for method, path, body in (
        ("POST", "/v1/keys", {"name": "x"}),
        ("POST", f"/v1/keys/{id_of(tenant_key)}/rotate", None),
        ("DELETE", f"/v1/keys/{id_of(tenant_key)}", None),
        ("POST", f"/v1/dlq/{dead_letter}/redrive", None),
        ("POST", "/v1/dlq/redrive", {"all": True}),
        ("DELETE", f"/v1/dlq/{dead_letter}", None),
        ("DELETE", "/v1/dlq?all=true", None),
        ("POST", "/v1/audit", None),
        ("DELETE", f"/v1/jobs/{job_id}", None),
    ):
        check_problem(await call(gateway, method, path, admin, body), 503, "store_corrupt")
    assert await gateway.snapshot() == before
    check_problem(await call(gateway, "GET", "/v1/trail", admin), 503, "store_corrupt")


async def test_actions_that_free_memory_work_when_redis_is_full(real_make: Make) -> None:
    """Otherwise a key that fills Redis could not be revoked, nor its jobs be removed."""
    gateway = real_make(auth="required")
    admin = await key_for(gateway, "root", scopes=("admin",))
    flooding_key = await key_for(gateway, tenant="shop")
    job_id = (await post(gateway, flooding_key)).json()["job_id"]
    dead_letter = await dead(gateway)
    await gateway.redis.config_set("maxmemory", "1")
    try:
        with short_retries(*gateway.batchers):
            check_problem(await post(gateway, flooding_key), 503, "store_unavailable")
        for path in (
            f"/v1/keys/{id_of(flooding_key)}",
            f"/v1/dlq/{dead_letter}",
            f"/v1/jobs/{job_id}",
        ):
            answer = await call(gateway, "DELETE", path, admin)
            assert answer.status in (200, 204), answer
    finally:
        await gateway.redis.config_set("maxmemory", "0")
    assert [action for action, _ in await actions(gateway, admin)] == [
        *("key.revoke", "dlq.purge", "job.cancel")
    ]


async def test_pages_list_each_entry_once(gateway: Gateway, admin: str) -> None:
    for number in range(7):
        await call(gateway, "DELETE", f"/v1/dlq/{number}-0", admin)
    whole = await entries(gateway, admin)
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
async def test_invalid_query_parameters_are_rejected(fake_make: Make, query: str) -> None:
    answer = await call(fake_make(), "GET", f"/v1/trail{query}")
    check_problem(answer, 422, "invalid_request")


async def test_invalid_entries_are_tolerated(gateway: Gateway, admin: str) -> None:
    await gateway.redis.xadd("access:trail", {b"\xff": b"\xff", b"who": b"\xfe", b"ts": b"soon"})
    [entry] = await entries(gateway, admin)
    assert (entry["who"], entry["ts"], entry["action"]) == ("�", 0, "")


async def test_the_log_line_has_the_client_address(
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


async def test_control_characters_are_replaced(
    fake_make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    log = fake_make().state.access.audit_log
    caplog.set_level("INFO", "common.access.audit_log")
    await log.write(AuditEntry("me", AuditAction.JOB_CANCEL, "a\nb\x1b[2J", remote="\u2028"))
    [entry] = await log.page("+", 1)
    assert (entry.target, entry.remote) == ("a?b?[2J", "?")
    [record] = [each for each in caplog.records if each.name == "common.access.audit_log"]
    assert record.getMessage() == "audit log: me job.cancel a?b?[2J from ?"
