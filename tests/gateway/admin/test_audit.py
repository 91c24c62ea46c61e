"""`/v1/audit`, the integrity check of jobs, and `/v1/trail`, the log of administrative actions."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from sluice.common.access.audit_log import AuditEntry
from sluice.common.contracts.access import AuditAction
from sluice.common.jobs.audit.auditor import AuditNotPermitted, AuditPace
from sluice.gateway.admin import integrity_audit as route
from sluice.gateway.admin.audit_log import AuditLogPage
from tests.support.gateway.access import bearer, call, id_of, key_for, post
from tests.support.gateway.asgi import Exchange
from tests.support.gateway.dead_letters import dead
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import Gateway, Make, check_problem, partitioned
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


async def audit(gateway: Gateway) -> list[dict[str, Any]]:
    """All lines of an audit."""
    answer = await gateway.client.send("POST", "/v1/audit")
    assert answer.status == 200, answer
    assert answer.header("content-type") == "application/x-ndjson"
    assert answer.header("cache-control") == "no-store, no-transform"
    return [json.loads(line) for line in answer.body.splitlines()]


async def slow(gateway: Gateway) -> str:
    """Make an audit wait forever for the second check of a job."""
    job_id = await gateway.create()
    await gateway.finish(job_id)
    await gateway.emit(job_id, "message")
    gateway.state.auditor._pace = AuditPace(pause_s=0.0, recheck_delay_s=3600.0)
    return job_id


async def begin(gateway: Gateway) -> Exchange:
    return await gateway.client.begin("POST", "/v1/audit").start()


@partitioned
async def test_an_audit_of_valid_jobs_finds_no_violations(gateway: Gateway) -> None:
    zeros = {"ts": 0, "jobs_checked": 0, "duration_ms": 0, "violations_total": 0, "violations": []}
    answer = await gateway.client.get("/v1/audit")
    assert answer.json() == {"last": zeros, "totals": {"jobs_checked": 0, "violations": 0}}
    for _ in range(3):
        await gateway.create()
    await gateway.finish(await gateway.create())
    first, *_, report = await audit(gateway)
    assert first == {"type": "progress", "jobs_checked": 0}
    assert report.pop("duration_ms") >= 0
    assert report.pop("ts") > 1_600_000_000_000
    expected = {"jobs_checked": 4, "violations_total": 0, "complete": True}
    assert report == {"type": "report", **expected}


@partitioned
async def test_violations_are_reported_and_stored(gateway: Gateway) -> None:
    job_id = await gateway.create()
    await gateway.finish(job_id)
    await gateway.emit(job_id, "message")
    lines = await audit(gateway)
    [violation] = [line for line in lines if line["type"] == "violation"]
    assert violation.pop("detail")
    assert violation == {"type": "violation", "job_id": job_id, "rule": "terminal_event_not_last"}
    assert lines[-1]["type"] == "report"
    assert lines[-1]["violations_total"] == 1
    await audit(gateway)
    stored = (await gateway.client.get("/v1/audit")).json()
    assert stored["totals"] == {"jobs_checked": 2, "violations": 2}
    assert stored["last"]["jobs_checked"] == 1
    assert stored["last"]["violations_total"] == 1
    assert [found["job_id"] for found in stored["last"]["violations"]] == [job_id]


async def test_progress_is_reported_regularly(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "LINE_EVERY_S", 0.01)
    await slow(gateway)
    stream = await begin(gateway)
    seen = b""
    counts: list[int] = []
    while len(counts) < 5 or counts[-1] == 0:
        seen += await stream.chunk() or b""
        counts = [json.loads(line)["jobs_checked"] for line in seen.splitlines()]
    assert (counts[0], counts[-1]) == (0, 1)
    await stream.hang_up()


async def test_a_second_audit_is_rejected_while_one_runs(gateway: Gateway) -> None:
    await slow(gateway)
    exchanges = [gateway.client.begin("POST", "/v1/audit") for _ in range(10)]
    started = [await exchange.start() for exchange in exchanges]
    [stream] = [exchange for exchange in started if exchange.status == 200]
    assert gateway.state.auditor.running
    answer = await gateway.client.send("POST", "/v1/audit")
    check_problem(answer, 429, "audit_running")
    assert int(answer.header("retry-after") or 0) >= 1
    await stream.hang_up()
    assert not gateway.state.auditor.running, "a client that disconnects ends the audit"
    exchange = gateway.client.begin("POST", "/v1/audit")
    exchange.take.clear()
    await asyncio.wait_for(exchange.held_up.wait(), 10)
    assert gateway.state.auditor.running
    await exchange.abandon()  # before the first byte
    assert not gateway.state.auditor.running
    assert not await gateway.redis.exists(gateway.keys.audit)
    gateway.state.auditor._pace = AuditPace(pause_s=0.0, recheck_delay_s=0.01)
    assert (await audit(gateway))[-1]["type"] == "report"


async def test_a_stopping_gateway_ends_the_audit_with_a_failure(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "LINE_EVERY_S", 0.01)
    await slow(gateway)
    stream = await begin(gateway)
    await stream.chunk()
    gateway.hub.close_streams()
    last = (await stream.body()).splitlines()[-1]
    assert json.loads(last) == {"type": "failed", "detail": "this process is stopping"}
    await eventually(lambda: not gateway.state.auditor.running)


async def test_an_audit_that_cannot_run_is_refused(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, client = raising(ConnectionError("gone")), gateway.state.client
    with monkeypatch.context() as patched:
        patched.setattr(client, "execute_command", away)
        for method in ("POST", "GET"):
            answer = await gateway.client.send(method, "/v1/audit")
            check_problem(answer, 503, "store_unavailable")
    with monkeypatch.context() as patched:
        patched.setattr(gateway.state.auditor, "run", raising(AuditNotPermitted("NOPERM")))
        answer = await gateway.client.send("POST", "/v1/audit")
        problem = check_problem(answer, 503, "audit_not_permitted")
        assert "sluice audit --local" in problem["detail"]
    with monkeypatch.context() as patched:  # Redis fails during the audit
        patched.setattr(client, "scan", away)
        assert (await audit(gateway))[-1] == {"type": "failed", "detail": "gone"}
    assert (await audit(gateway))[-1]["type"] == "report"


async def test_a_report_that_cannot_be_stored_is_still_returned(gateway: Gateway) -> None:
    await gateway.redis.set(gateway.keys.audit, "x")
    await gateway.create()
    assert (await audit(gateway))[-1]["jobs_checked"] == 1
    assert (await gateway.client.get("/v1/audit")).json()["totals"]["jobs_checked"] == 0
    await gateway.redis.delete(gateway.keys.audit)
    for found in (b"", b"x", b"1", b"null", b'[{"job_id":"j"}]', b"\xff"):  # of a third party
        odd: Any = {"last_found": found, "last_jobs": b"\xff", "jobs_total": "7"}
        await gateway.redis.hset(gateway.keys.audit, mapping=odd)
        answer = (await gateway.client.get("/v1/audit")).json()
        assert (answer["last"]["violations"], answer["totals"]["jobs_checked"]) == ([], 7)


@pytest.fixture
async def admin(strict: Gateway) -> str:
    return await key_for(strict, "root", scopes=("admin",))


async def entries(gateway: Gateway, key: str | None, query: str = "") -> list[dict[str, Any]]:
    answer = await call(gateway, "GET", f"/v1/trail{query}", key)
    assert answer.status == 200
    AuditLogPage.model_validate_json(answer.body)
    return answer.json()["items"]


async def actions(gateway: Gateway, key: str | None) -> list[tuple[str, str]]:
    return [(item["action"], item["target"]) for item in reversed(await entries(gateway, key))]


async def test_an_entry_names_the_key_the_action_and_its_target(
    strict: Gateway, admin: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers = bearer(admin, x_request_id="r-17")
    with caplog.at_level(logging.INFO, "sluice.common.access.audit_log"):
        created = (
            await strict.client.send("POST", "/v1/keys", headers, {"name": "shop front"})
        ).json()
    [line] = caplog.messages
    assert line.startswith(f"audit log: {id_of(admin)} key.create ")
    assert line.endswith(" from 127.0.0.1")
    [entry] = await entries(strict, admin)
    target = f"{created['key_id']} shop front"
    assert (entry["who"], entry["name"]) == (id_of(admin), "root")
    assert (entry["action"], entry["target"]) == ("key.create", target)
    assert (entry["request_id"], entry["remote"]) == ("r-17", "127.0.0.1")
    assert created["key"] not in json.dumps(entry)
    await strict.redis.xadd("access:trail", {b"\xff": b"\xff", b"who": b"\xfe", b"ts": b"soon"})
    invalid, _ = await entries(strict, admin)
    assert (invalid["who"], invalid["ts"], invalid["action"]) == ("\ufffd", 0, "")


async def test_every_administrative_action_is_recorded(strict: Gateway, admin: str) -> None:
    created = (await call(strict, "POST", "/v1/keys", admin, {"name": "x"})).json()["key_id"]
    await call(strict, "POST", f"/v1/keys/{created}/rotate", admin)
    await call(strict, "DELETE", f"/v1/keys/{created}", admin)
    dead_letters = [await dead(strict, number) for number in range(4)]
    await call(strict, "POST", f"/v1/dlq/{dead_letters[0]}/redrive", admin)
    await call(strict, "POST", "/v1/dlq/redrive", admin, {"ids": [dead_letters[1]]})
    await call(strict, "POST", "/v1/dlq/redrive", admin, {"all": True, "dry_run": True})
    await call(strict, "DELETE", f"/v1/dlq/{dead_letters[2]}", admin)
    await call(strict, "DELETE", "/v1/dlq?reason=attempts_exhausted", admin)
    await call(strict, "DELETE", "/v1/dlq?all=true", admin)
    await call(strict, "POST", "/v1/audit", admin)
    assert await actions(strict, admin) == [
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


async def test_only_administrative_actions_are_recorded(strict: Gateway, admin: str) -> None:
    tenant_key = await key_for(strict, tenant="acme")
    for method, path in (("GET", "/v1/keys"), ("GET", "/v1/dlq"), ("GET", "/v1/trail")):
        await call(strict, method, path, admin)
    await call(strict, "POST", "/v1/keys", tenant_key, {"name": "x"})
    await call(strict, "DELETE", "/v1/dlq", admin)
    await call(strict, "DELETE", "/v1/keys/x", admin)
    job_ids = [(await post(strict, tenant_key)).json()["job_id"] for _ in range(2)]
    assert (await call(strict, "DELETE", f"/v1/jobs/{job_ids[0]}", tenant_key)).status == 200
    assert await entries(strict, admin) == []
    assert (await call(strict, "DELETE", f"/v1/jobs/{job_ids[1]}", admin)).status == 200
    assert await actions(strict, admin) == [("job.cancel", job_ids[1])], "of another tenant"


async def test_requests_without_a_key_are_recorded_as_local(make: Make) -> None:
    gateway = make()
    await call(gateway, "DELETE", "/v1/dlq?all=true")
    job_id = await gateway.create()
    await call(gateway, "DELETE", f"/v1/jobs/{job_id}")
    own_id = (await post(gateway, await key_for(gateway, tenant="acme"))).json()["job_id"]
    await call(gateway, "POST", f"/v1/jobs/{own_id}/cancel")
    expected = [("dlq.purge", "all"), ("job.cancel", job_id), ("job.cancel", own_id)]
    assert await actions(gateway, None) == expected
    assert {(entry["who"], entry["name"]) for entry in await entries(gateway, None)} == {
        ("local", "")
    }


async def test_an_action_that_cannot_be_recorded_is_refused(strict: Gateway, admin: str) -> None:
    tenant_key = await key_for(strict, tenant="acme")
    job_id = (await post(strict, tenant_key)).json()["job_id"]
    dead_letter = await dead(strict)
    await strict.redis.set("access:trail", "no stream")
    before = await strict.snapshot()
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
        check_problem(await call(strict, method, path, admin, body), 503, "store_corrupt")
    assert await strict.snapshot() == before
    check_problem(await call(strict, "GET", "/v1/trail", admin), 503, "store_corrupt")


async def test_pages_list_each_entry_once(strict: Gateway, admin: str) -> None:
    for number in range(7):
        await call(strict, "DELETE", f"/v1/dlq/{number}-0", admin)
    pages = await strict.client.pages("/v1/trail?limit=3", headers=bearer(admin))
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert [item for page in pages for item in page["items"]] == await entries(strict, admin)
    for query in ("?limit=0", "?limit=201", "?limit=x", "?before=x"):
        answer = await call(strict, "GET", f"/v1/trail{query}", admin)
        check_problem(answer, 422, "invalid_request")


async def test_control_characters_are_replaced(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    log = make().state.access.audit_log
    caplog.set_level("INFO", "sluice.common.access.audit_log")
    await log.write(AuditEntry("me", AuditAction.JOB_CANCEL, "a\nb\x1b[2J", remote="\u2028"))
    [entry] = await log.page("+", 1)
    assert (entry.target, entry.remote) == ("a?b?[2J", "?")
    [record] = [each for each in caplog.records if each.name == "sluice.common.access.audit_log"]
    assert record.getMessage() == "audit log: me job.cancel a?b?[2J from ?"
