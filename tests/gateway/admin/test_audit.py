"""`/v1/audit`: the last integrity check, and a new one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.audit.auditor import AuditNotPermitted, Auditor, AuditPace
from common.redis.connection import async_client
from gateway.admin import integrity_audit as route
from tests.conftest import eventually
from tests.gateway.asgi import Exchange
from tests.gateway.conftest import Gateway, check_problem
from tests.support.backends import Backend


async def post(gateway: Gateway) -> list[dict[str, Any]]:
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


async def test_before_the_first_audit_all_numbers_are_zero(gateway: Gateway) -> None:
    answer = await gateway.client.get("/v1/audit")
    assert answer.status == 200
    zeros = {"ts": 0, "jobs_checked": 0, "duration_ms": 0, "violations_total": 0, "violations": []}
    assert answer.json() == {"last": zeros, "totals": {"jobs_checked": 0, "violations": 0}}


async def test_an_audit_of_valid_jobs_finds_no_violations(gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.create()
    await gateway.finish(await gateway.create())
    first, *_, report = await post(gateway)
    assert first == {"type": "progress", "jobs_checked": 0}
    assert report.pop("duration_ms") >= 0
    assert report.pop("ts") > 1_600_000_000_000
    expected = {"jobs_checked": 4, "violations_total": 0, "complete": True}
    assert report == {"type": "report", **expected}


async def test_violations_are_reported_and_stored(gateway: Gateway) -> None:
    job_id = await gateway.create()
    await gateway.finish(job_id)
    await gateway.emit(job_id, "message")
    lines = await post(gateway)
    [violation] = [line for line in lines if line["type"] == "violation"]
    assert violation.pop("detail")
    assert violation == {"type": "violation", "job_id": job_id, "rule": "terminal_event_not_last"}
    assert lines[-1]["type"] == "report"
    assert lines[-1]["violations_total"] == 1
    await post(gateway)
    stored = (await gateway.client.get("/v1/audit")).json()
    assert stored["totals"] == {"jobs_checked": 2, "violations": 2}
    assert stored["last"]["jobs_checked"] == 1
    assert stored["last"]["violations_total"] == 1
    assert [found["job_id"] for found in stored["last"]["violations"]] == [job_id]


async def test_an_audit_changes_no_job(gateway: Gateway) -> None:
    job_id = await gateway.create()
    before = await gateway.redis.hgetall(gateway.keys.job(job_id))  # type: ignore[misc]
    await post(gateway)
    assert await gateway.redis.hgetall(gateway.keys.job(job_id)) == before  # type: ignore[misc]
    assert await gateway.redis.xlen(gateway.keys.events(job_id)) == 1


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
    stream = await begin(gateway)
    await stream.chunk()
    answer = await gateway.client.send("POST", "/v1/audit")
    check_problem(answer, 429, "audit_running")
    assert int(answer.header("retry-after") or 0) >= 1
    await stream.hang_up()
    gateway.state.auditor._pace = AuditPace(pause_s=0.0, recheck_delay_s=0.01)
    assert (await post(gateway))[-1]["type"] == "report"


async def test_of_many_concurrent_requests_one_is_served(gateway: Gateway) -> None:
    await slow(gateway)
    exchanges = [gateway.client.begin("POST", "/v1/audit") for _ in range(10)]
    started = [await exchange.start() for exchange in exchanges]
    statuses = sorted(exchange.status for exchange in started)
    assert statuses == [200, *[429] * 9]


async def test_a_client_that_disconnects_ends_the_audit(gateway: Gateway) -> None:
    await slow(gateway)
    stream = await begin(gateway)
    await stream.chunk()
    assert gateway.state.auditor.running
    await stream.hang_up()
    assert not gateway.state.auditor.running
    assert not await gateway.redis.exists(gateway.keys.audit)


async def test_a_client_that_leaves_before_the_first_byte(gateway: Gateway) -> None:
    await slow(gateway)
    exchange = gateway.client.begin("POST", "/v1/audit")
    exchange.take.clear()
    await asyncio.wait_for(exchange.held_up.wait(), 10)
    assert gateway.state.auditor.running
    await exchange.abandon()
    assert not gateway.state.auditor.running


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


async def test_unreachable_redis_gets_503(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(gateway.state.client, "execute_command", away)
    check_problem(await gateway.client.send("POST", "/v1/audit"), 503, "store_unavailable")
    check_problem(await gateway.client.get("/v1/audit"), 503, "store_unavailable")
    monkeypatch.undo()
    assert (await post(gateway))[-1]["type"] == "report"


async def test_redis_failing_during_the_audit_is_reported(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(gateway.state.client, "scan", away)
    lines = await post(gateway)
    assert lines[-1] == {"type": "failed", "detail": "gone"}


@pytest.mark.parametrize("lacking", ["-scan", "-xrange"])
async def test_an_audit_with_missing_permissions_is_refused(
    real_backend: Backend, lacking: str
) -> None:
    """A partial audit would report jobs as lost that are not."""
    admin = real_backend.client()
    await admin.execute_command("ACL", "SETUSER", "half", "on", ">x", "~*", "&*", "+@all", lacking)
    assert real_backend.url is not None
    limited = async_client(real_backend.url.replace("unix://", "unix://half:x@"), connections=1)
    try:
        with pytest.raises(AuditNotPermitted):
            await Auditor(limited, JobKeys(), "workers").run()
    finally:
        await limited.aclose()
        await admin.execute_command("ACL", "DELUSER", "half")


async def test_the_refusal_names_the_local_command(
    fake_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*args: Any) -> Any:
        raise AuditNotPermitted("NOPERM")

    monkeypatch.setattr(fake_gateway.state.auditor, "run", refused)
    answer = await fake_gateway.client.send("POST", "/v1/audit")
    problem = check_problem(answer, 503, "audit_not_permitted")
    assert "sluice audit --local" in problem["detail"]


async def test_a_report_that_cannot_be_stored_is_still_returned(gateway: Gateway) -> None:
    await gateway.redis.set(gateway.keys.audit, "x")
    await gateway.create()
    assert (await post(gateway))[-1]["jobs_checked"] == 1
    assert (await gateway.client.get("/v1/audit")).json()["totals"]["jobs_checked"] == 0


@pytest.mark.parametrize("found", [b"", b"x", b"1", b"null", b'[{"job_id":"j"}]', b"\xff"])
async def test_an_invalid_stored_report_is_tolerated(gateway: Gateway, found: bytes) -> None:
    odd: Any = {"last_found": found, "last_jobs": b"\xff", "jobs_total": "7"}
    await gateway.redis.hset(gateway.keys.audit, mapping=odd)  # type: ignore[misc]
    answer = (await gateway.client.get("/v1/audit")).json()
    assert answer["last"]["violations"] == []
    assert answer["totals"]["jobs_checked"] == 7


def test_the_endpoint_is_in_the_openapi_document(fake_gateway: Gateway) -> None:
    path = fake_gateway.app.openapi()["paths"]["/v1/audit"]
    assert set(path) == {"get", "post"}
    post_answers = path["post"]["responses"]
    assert {"200", "429", "503"} <= set(post_answers)
    assert set(post_answers["200"]["content"]) == {"application/x-ndjson"}
    assert set(post_answers["429"]["content"]) == {"application/problem+json"}
    assert "application/json" in path["get"]["responses"]["200"]["content"]
