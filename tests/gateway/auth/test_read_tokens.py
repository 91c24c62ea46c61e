"""Read tokens: what they permit, who creates them, when they end, and that they are not shown."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import quote

import pytest

from sluice.common.errors import StoreUnavailable
from sluice.gateway.auth import callers as callers_module
from sluice.gateway.auth import read_tokens as tokens_module
from sluice.gateway.auth.permissions import PERMISSIONS
from sluice.gateway.auth.read_tokens import ReadClaims, ReadTarget, read_target
from sluice.gateway.features.workflows.models.responses import JobStatusView
from sluice.gateway.jobs.models import JobView
from tests.support.gateway.access import bearer, call, client_at, id_of, key_for, post
from tests.support.gateway.asgi import TIMEOUT_S, Answer
from tests.support.gateway.dashboard import PAGE
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem
from tests.support.gateway.workflows import Workflows, check_envelope
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

WORKFLOW = "/api/workflow/jobs/{id}/"


async def create(gateway: Gateway, key: str | None = None, **body: Any) -> Answer:
    return await call(gateway, "POST", "/v1/tokens", key, body)


async def token_of(gateway: Gateway, key: str | None = None, **body: Any) -> str:
    answer = await create(gateway, key, **body)
    assert answer.status == 201, answer
    token: str = answer.json()["token"]
    return token


async def job_of(gateway: Gateway, key: str) -> str:
    job_id: str = (await post(gateway, key)).json()["job_id"]
    return job_id


def with_token(path: str, token: str) -> str:
    return f"{path}?token={token}"


async def get(gateway: Gateway, path: str, token: str, **headers: str) -> Answer:
    return await gateway.client.get(with_token(path, token), headers)


# -- what a token permits --------------------------------------------------------------------------


async def test_a_token_reads_and_watches_its_job(strict: Gateway) -> None:
    key = await key_for(strict, tenant="shop")
    job_id = await job_of(strict, key)
    created = await create(strict, key, job_id=job_id, ttl_s=60)
    assert created.status == 201
    assert created.header("cache-control") == "no-store"
    token, expires_ts = created.json()["token"], created.json()["expires_ts"]
    assert 55_000 < expires_ts - time.time() * 1000 <= 60_000
    assert set(created.json()) == {"token", "expires_ts"}

    path = f"/v1/jobs/{job_id}"
    for answer in (
        await get(strict, path, token),
        await get(strict, path, quote(token, safe="").replace("~", "%7E")),
        await strict.client.get(path, bearer(token)),
    ):
        assert answer.status == 200
        assert JobView.model_validate_json(answer.body).job_id == job_id
        assert answer.header("cache-control") == "no-store"
        assert answer.header("referrer-policy") == "no-referrer"


async def test_a_stream_with_a_token_has_every_event(strict: Gateway) -> None:
    key = await key_for(strict)
    job_id = await job_of(strict, key)
    token = await token_of(strict, key, job_id=job_id)
    path = f"/v1/jobs/{job_id}/events"
    stream = await strict.client.request("GET", with_token(path, token)).start()
    assert stream.status == 200
    assert "no-store" in (stream.header("cache-control") or "")
    assert "no-transform" in (stream.header("cache-control") or "")
    assert stream.header("referrer-policy") == "no-referrer"
    last = (await stream.event("queued")).id
    await strict.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["done"]
    resumed = await strict.client.request(
        "GET", f"{path}?last_event_id={last}&token={token}"
    ).start()
    assert [block.event for block in await resumed.rest()] == ["hello", "done"]


async def test_a_finished_job_is_not_stored_by_caches(strict: Gateway) -> None:
    key = await key_for(strict)
    job_id = await job_of(strict, key)
    await strict.finish(job_id)
    path, token = f"/v1/jobs/{job_id}", await token_of(strict, key, job_id=job_id)
    answer = await get(strict, path, token)
    assert answer.header("cache-control") == "no-store"
    tag = answer.header("etag")
    assert tag is not None
    unchanged = await get(strict, path, token, if_none_match=tag)
    assert (unchanged.status, unchanged.header("cache-control")) == (304, "no-store")
    with_key = await call(strict, "GET", path, key)
    assert with_key.header("cache-control") == "private, max-age=60"


async def test_a_token_reads_and_watches_its_workflow_job(make: Make) -> None:
    gateway = make(auth="required")
    key, other = [await key_for(gateway, tenant=name) for name in ("shop", "other")]
    workflows = Workflows(gateway)
    job_id = await workflows.create_job(**bearer(key))
    check_problem(await create(gateway, other, workflow_job_id=job_id), 404, "job_not_found")
    token = await token_of(gateway, key, workflow_job_id=job_id)
    base = WORKFLOW.format(id=job_id)
    status = await get(gateway, f"{base}status", token)
    assert JobStatusView.model_validate_json(status.body).job.job_id == job_id
    assert status.header("cache-control") == "no-store"
    listed = await get(gateway, f"{base}events", token)
    assert listed.status == 200
    stream = await gateway.client.request("GET", with_token(f"{base}events/stream", token)).start()
    assert stream.status == 200
    await stream.event("job.created")

    check_envelope(await get(gateway, f"{base}results", token), 401, "key_required")
    check_envelope(await get(gateway, f"{base}status", "x"), 401, "invalid_token")
    another = WORKFLOW.format(id="wf_20000101_001")
    check_envelope(await get(gateway, f"{another}status", token), 403, "token_mismatch")
    assert token not in (await get(gateway, f"{base}events", f"{token}&limit=x")).body.decode()


def test_tokens_are_for_reading_one_job() -> None:
    permitted = {
        (method, path)
        for method, path in PERMISSIONS
        if read_target(method, path.replace("{job_id}", "x")) is not None
    }
    assert permitted == {
        ("GET", "/v1/jobs/{job_id}"),
        ("GET", "/v1/jobs/{job_id}/events"),
        ("GET", "/api/workflow/jobs/{job_id}/status"),
        ("GET", "/api/workflow/jobs/{job_id}/events"),
        ("GET", "/api/workflow/jobs/{job_id}/events/stream"),
    }
    for path in ("/v1/jobs/x/", "/v1/jobs/x/events/", "/v1/jobs/x/events/y", "/v1/jobs", "/"):
        assert read_target("GET", path) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("DELETE", "/v1/jobs/{id}"),
        ("POST", "/v1/jobs/{id}/cancel"),
        ("POST", "/v1/tokens"),
        ("GET", "/v1/whoami"),
        ("GET", "/v1/stream"),
        ("GET", "/metrics"),
    ],
)
async def test_a_token_is_not_accepted_elsewhere(strict: Gateway, method: str, path: str) -> None:
    key = await key_for(strict, scopes=("admin",))
    job_id = await job_of(strict, key)
    token = await token_of(strict, key, job_id=job_id)
    target = path.format(id=job_id)
    body = {"job_id": job_id} if path == "/v1/tokens" else CHAT if method == "POST" else None
    answer = await strict.client.send(method, with_token(target, token), {}, body)
    check_problem(answer, 401, "key_required")
    answer = await strict.client.send(method, target, bearer(token), body)
    check_problem(answer, 401, "invalid_key")


# -- refusals --------------------------------------------------------------------------------------


async def test_invalid_tokens_are_refused(strict: Gateway) -> None:
    key = await key_for(strict)
    job_id, other_job = [await job_of(strict, key) for _ in range(2)]
    tokens = strict.state.access.read_tokens
    claims = ReadClaims(ReadTarget.job(job_id), int(time.time()) + 60, id_of(key))
    token = await tokens.issue(claims)
    path = f"/v1/jobs/{job_id}"
    assert (await get(strict, path, token)).status == 200

    content, _, signature = token.rpartition("~")
    later = token.replace(str(claims.expires_s), str(claims.expires_s + 1))
    of_nobody = token.replace(f"~{id_of(key)}~", "~~")
    flipped = f"{content}~{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"
    other_kind = token.replace("~job~", "~workflow~")
    bad = ["", "x", token[:-1], f"{token}x", later, of_nobody, flipped, other_kind, key]
    bad += [
        "%00",
        "%FF",
        "%C3%A9",
        "rd1~" + "x" * 8000,
        f"{content}~{'%C3%A9' * 43}",
        f"{token}%0A",
    ]
    for shown in bad:
        problem = check_problem(await get(strict, path, shown), 401, "invalid_token")
        assert 'error="invalid_token"' in (await get(strict, path, shown)).header(
            "www-authenticate"
        )
        assert problem["instance"] == path
    expired = await tokens.issue(claims._replace(expires_s=int(time.time())))
    check_problem(await get(strict, path, expired), 401, "token_expired")
    for suffix in ("", "/events"):
        answer = await get(strict, f"/v1/jobs/{other_job}{suffix}", token)
        check_problem(answer, 403, "token_mismatch")
    check_problem(await get(strict, path, f"{token}&token={token}"), 401, "invalid_token")
    check_problem(await get(strict, path, token, **bearer(key)), 401, "invalid_token")
    unknown = await tokens.issue(claims._replace(key_id="aaaaaaaa"))
    check_problem(await get(strict, path, unknown), 401, "invalid_token")
    gone = await tokens.issue(claims._replace(target=ReadTarget.job("no-such-job")))
    check_problem(await get(strict, "/v1/jobs/no-such-job", gone), 404, "job_not_found")


async def test_a_token_never_grants_more_than_its_key(strict: Gateway) -> None:
    """Checked again with the key's record at each use."""
    shop, other = [await key_for(strict, name, tenant=name) for name in ("shop", "other")]
    writer = await key_for(strict, tenant="shop", scopes=("jobs:write",))
    job_id = await job_of(strict, shop)
    tokens = strict.state.access.read_tokens
    for key, status, code in ((other, 404, "job_not_found"), (writer, 403, "insufficient_scope")):
        expires_s = int(time.time()) + 60
        token = await tokens.issue(ReadClaims(ReadTarget.job(job_id), expires_s, id_of(key)))
        check_problem(await get(strict, f"/v1/jobs/{job_id}", token), status, code)


async def test_tokens_end_with_their_key(strict: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 0.0)
    revoked, expired = [await key_for(strict, expires_s=300.0) for _ in range(2)]
    for key in (revoked, expired):
        job_id = await job_of(strict, key)
        answer = (await create(strict, key, job_id=job_id, ttl_s=3600)).json()
        assert answer["expires_ts"] <= (time.time() + 300) * 1000  # not later than the key
        path, token = f"/v1/jobs/{job_id}", answer["token"]
        assert (await get(strict, path, token)).status == 200
        if key is revoked:
            await strict.state.access.keys.revoke(id_of(key))
        else:
            records = strict.state.access.keys.keys.records
            stored = json.loads(await strict.redis.hget(records, id_of(key)) or b"")
            changed = json.dumps({**stored, "expires_ms": 1})
            await strict.redis.hset(records, id_of(key), changed)
        check_problem(await get(strict, path, token), 401, "invalid_token")


async def test_tokens_end_with_their_secret(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "SECRET_TTL_S", 0.0)
    key = await key_for(strict)
    job_id = await job_of(strict, key)
    path, token = f"/v1/jobs/{job_id}", await token_of(strict, key, job_id=job_id)
    secret = strict.state.access.keys.keys.token_secret
    assert len(await strict.redis.get(secret)) == 32
    await strict.redis.delete(secret)
    check_problem(await get(strict, path, token), 401, "invalid_token")
    assert await strict.redis.exists(secret) == 0  # a request without a key writes nothing
    new = await token_of(strict, key, job_id=job_id)
    check_problem(await get(strict, path, token), 401, "invalid_token")
    assert (await get(strict, path, new)).status == 200
    for damage in (strict.redis.hset(secret, "a", "b"), strict.redis.set(secret, b"")):
        await strict.redis.delete(secret)
        await damage
        check_problem(await get(strict, path, new), 401, "invalid_token")
        check_problem(await create(strict, key, job_id=job_id), 503, "store_corrupt")


async def test_gateways_share_tokens(make: Make) -> None:
    first, second = make(auth="required"), make(auth="required")
    key = await key_for(first)
    job_id = await job_of(first, key)
    tokens = await asyncio.gather(
        *(token_of(gateway, key, job_id=job_id) for gateway in (first, second))
    )
    for gateway in (first, second):
        for token in tokens:
            assert (await get(gateway, f"/v1/jobs/{job_id}", token)).status == 200


async def test_without_redis_no_token_is_accepted(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_for(strict)
    job_id = await job_of(strict, key)
    token = await token_of(strict, key, job_id=job_id)
    monkeypatch.setattr(strict.state.access.keys, "token_secret", raising(StoreUnavailable("gone")))
    monkeypatch.setattr(tokens_module, "SECRET_TTL_S", 0.0)
    for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events"):
        check_problem(await get(strict, path, token), 503, "store_unavailable")
    check_problem(await create(strict, key, job_id=job_id), 503, "store_unavailable")


# -- creating --------------------------------------------------------------------------------------


async def test_only_readers_of_a_job_create_tokens(strict: Gateway) -> None:
    shop, other = [await key_for(strict, name, tenant=name) for name in ("shop", "other")]
    job_id = await job_of(strict, shop)
    for scope in ("jobs:write", "ui", "metrics"):
        key = await key_for(strict, tenant="shop", scopes=(scope,))
        check_problem(await create(strict, key, job_id=job_id), 403, "insufficient_scope")
    check_problem(await create(strict, job_id=job_id), 401, "key_required")
    for key, wanted in ((other, job_id), (shop, "no-such-job"), (shop, "a/b"), (shop, "\u00e9")):
        check_problem(await create(strict, key, job_id=wanted), 404, "job_not_found")
    for wanted in ("wf_20000101_001", job_id, "x"):
        answer = await create(strict, shop, workflow_job_id=wanted)
        check_problem(answer, 404, "job_not_found")
    operator = await key_for(strict)
    assert (await create(strict, operator, job_id=job_id)).status == 201


async def test_invalid_requests_for_tokens_are_refused(strict: Gateway) -> None:
    key = await key_for(strict)
    job_id = await job_of(strict, key)
    for body in (
        {},
        {"job_id": None},
        {"job_id": job_id, "workflow_job_id": "wf_20260214_001"},
        *({"job_id": bad} for bad in (7, "", "x" * 129, [job_id])),
        *({"job_id": job_id, "ttl_s": bad} for bad in (0, -1, 3601, 1.5, "60", None, True)),
        {"job_id": job_id, "scope": "jobs:write"},
    ):
        check_problem(await create(strict, key, **body), 422, "invalid_request")
    usual = (await create(strict, key, job_id=job_id)).json()["expires_ts"]
    assert 590_000 < usual - time.time() * 1000 <= 600_000


async def test_a_session_of_the_dashboard_creates_no_tokens(strict: Gateway) -> None:
    """A token would outlive the session."""
    key = await key_for(strict, scopes=("ui", "jobs:read", "jobs:write"))
    job_id = await job_of(strict, key)
    signed = await strict.client.send("POST", "/ui/session", PAGE, {"key": key, "actions": True})
    cookie = (signed.header("set-cookie") or "").partition(";")[0]
    headers = {**PAGE, "cookie": cookie}
    assert (await strict.client.get(f"/v1/jobs/{job_id}", headers)).status == 200
    answer = await strict.client.send("POST", "/v1/tokens", headers, {"job_id": job_id})
    check_problem(answer, 403, "session_not_allowed")


async def test_the_local_operator_creates_tokens(make: Make) -> None:
    gateway = make()
    job_id = await gateway.create()
    path, token = f"/v1/jobs/{job_id}", await token_of(gateway, job_id=job_id)
    forwarded = {"x-forwarded-for": "192.0.2.7"}
    assert (await get(gateway, path, token)).status == 200
    assert (await get(gateway, path, token, **forwarded)).status == 200
    check_problem(await gateway.client.get(path, forwarded), 401, "key_required")
    check_problem(await get(gateway, path, "x"), 401, "invalid_token")
    answer = await client_at(gateway).get(with_token(path, token))
    check_problem(answer, 401, "invalid_token")
    # Another gateway on the same Redis, or this one after a restart.
    check_problem(await get(make(auth="required"), path, token), 401, "invalid_token")


# -- streams and waits end -------------------------------------------------------------------------


@pytest.mark.parametrize("with_key", [True, False])
async def test_a_stream_ends_when_its_token_expires(
    make: Make, monkeypatch: pytest.MonkeyPatch, with_key: bool
) -> None:
    gateway = make(auth="required" if with_key else "auto", sse_heartbeat_s=0.05)
    key = await key_for(gateway) if with_key else None
    job_id = (await call(gateway, "POST", "/v1/jobs", key, CHAT)).json()["job_id"]
    token = await token_of(gateway, key, job_id=job_id)
    target = with_token(f"/v1/jobs/{job_id}/events", token)
    stream = await gateway.client.request("GET", target).start()
    await stream.event("queued")
    await eventually(lambda: gateway.hub.clients)
    later = time.time() + 601
    monkeypatch.setattr(time, "time", lambda: later)
    await gateway.emit(job_id, "message", {"text": "late"})
    assert await stream.rest() == []
    check_problem(await gateway.client.get(target), 401, "token_expired")


async def test_a_stream_ends_when_the_key_of_its_token_is_revoked(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 0.0)
    gateway = make(auth="required", sse_heartbeat_s=0.05)
    key = await key_for(gateway)
    job_id = await job_of(gateway, key)
    token = await token_of(gateway, key, job_id=job_id)
    target = with_token(f"/v1/jobs/{job_id}/events", token)
    stream = await gateway.client.request("GET", target).start()
    await stream.event("queued")
    await gateway.emit(job_id, "message", {"text": "in time"})
    await stream.event("message")
    await gateway.state.access.keys.revoke(id_of(key))
    await gateway.emit(job_id, "message", {"text": "late"})
    assert await stream.rest() == []


async def test_a_waiting_request_gets_no_result_after_its_token_expired(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_for(strict)
    job_id = await job_of(strict, key)
    token = await token_of(strict, key, job_id=job_id)
    target = with_token(f"/v1/jobs/{job_id}", token)
    waiting = strict.client.request("GET", target, {"prefer": "wait=20"})
    await eventually(lambda: strict.hub.clients)
    later = time.time() + 601
    monkeypatch.setattr(time, "time", lambda: later)
    await strict.finish(job_id)
    answer = await asyncio.wait_for(waiting.answer(), TIMEOUT_S)
    assert answer.status == 401
    assert "read token" in check_problem(answer, 401, "invalid_key")["detail"]


# -- CORS and logs ---------------------------------------------------------------------------------


async def test_pages_of_allowed_origins_use_tokens(make: Make) -> None:
    gateway = make(auth="required", allowed_origins="https://app.example.com")
    key = await key_for(gateway)
    job_id = await job_of(gateway, key)
    token = await token_of(gateway, key, job_id=job_id)
    for origin, allowed in (("https://app.example.com", True), ("https://other.example", False)):
        answer = await get(gateway, f"/v1/jobs/{job_id}", token, origin=origin)
        assert answer.header("access-control-allow-origin") == (origin if allowed else None)
        posted = await gateway.client.send(
            "POST", "/v1/tokens", bearer(key, origin=origin), {"job_id": job_id}
        )
        assert posted.status == (201 if allowed else 403)


async def test_tokens_are_never_logged_or_repeated(
    strict: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    key = await key_for(strict)
    job_id, other = [await job_of(strict, key) for _ in range(2)]
    token = await token_of(strict, key, job_id=job_id)
    answers = [
        await get(strict, path, shown)
        for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{other}", f"/v1/jobs/{job_id}/events/x")
        for shown in (token, f"{token}x", f"{token}&last_event_id=x", f"{token}&token={token}")
    ]
    answers.append(await get(strict, f"/v1/jobs/{job_id}/events", f"{token}&last_event_id=x"))
    monkeypatch.setattr(strict.state.store, "get", raising(RuntimeError("broken")))
    failed = await get(strict, f"/v1/jobs/{job_id}", token)
    check_problem(failed, 500, "internal_error")
    signature = token.rpartition("~")[2]
    for answer in (*answers, failed):
        assert signature not in answer.body.decode()
        assert signature not in str(answer.headers)
    logged = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    assert f"GET /v1/jobs/{job_id}" in logged
    assert signature not in logged
    for name in await strict.redis.keys("*"):
        assert signature.encode() not in name
    trail = str(await strict.redis.xrange("access:trail"))
    assert signature not in trail
