"""Errors on these paths have OpenAI's format, on others they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.http.error_formats import openai_error_view
from gateway.http.paths import is_openai
from tests.gateway.access_kit import bearer, client_at, key_for
from tests.gateway.conftest import CHAT as JOB
from tests.gateway.conftest import Gateway, Make, check_problem
from tests.gateway.features.openai.kit import CHAT, EMBEDDINGS, HELLO, MODELS, error_in, send, work

KINDS = {
    "invalid_payload": 400,
    "model_refused": 400,
    "unknown_tool": 400,
    "model_failed": 502,
    "model_stream_broken": 502,
    "model_answer_invalid": 502,
    "no_model": 503,
    "no_embedder": 503,
    "model_unavailable": 503,
    "unknown_task": 503,
    "tool_unavailable": 503,
    "timeout": 504,
    "expired_before_start": 504,
    "model_connect_timeout": 504,
    "model_first_token_timeout": 504,
    "model_idle_timeout": 504,
    "model_total_timeout": 504,
    "handler_error": 500,
    "attempts_exhausted": 500,
    "ZeroDivisionError": 500,
}


@pytest.mark.parametrize(("kind", "status"), KINDS.items())
async def test_a_failed_job_has_the_status_of_its_error_kind(
    fake_gateway: Gateway, kind: str, status: int
) -> None:
    request = await work(fake_gateway)
    await request.run()
    await request.fail(kind, "so and so")
    answer = await request.answer()
    error = error_in(answer, status, kind)
    assert error["message"] == "so and so"
    assert error["type"] == ("invalid_request_error" if status == 400 else "server_error")
    # SDKs retry by default, but the job has used its attempts.
    assert answer.header("x-should-retry") == "false"
    assert answer.header("x-job-id") == request.job_id


@pytest.mark.parametrize("error", ["", "no json", "[1]", '{"kind":null}'])
async def test_an_invalid_error_is_a_handler_error(fake_gateway: Gateway, error: str) -> None:
    request = await work(fake_gateway)
    await request.end("error", error=error)
    assert error_in(await request.answer(), 500, "handler_error")["message"] == "the job failed"


async def test_a_full_queue_gets_429(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    await gateway.create()
    answer = await send(gateway, HELLO)
    error = error_in(answer, 429, "queue_full")
    assert error["type"] == "rate_limit_error"
    assert answer.header("retry-after")
    assert answer.header("retry-after-ms")
    assert answer.header("x-should-retry") is None


async def test_rate_limits_and_quotas_get_429(make: Make) -> None:
    gateway = make(auth="required")
    slow = await key_for(gateway, rate_per_min=1, burst=1)
    few = await key_for(gateway, max_jobs=1)
    for key, code in ((slow, "rate_limit_exceeded"), (few, "quota_exceeded")):
        await gateway.client.post(JOB, bearer(key))
        answer = await send(gateway, HELLO, **bearer(key))
        assert error_in(answer, 429, code)["type"] == "rate_limit_error"
        assert answer.header("retry-after")


async def test_unreachable_redis_gets_503(fake_make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis.exceptions import ConnectionError as Gone

    gateway = fake_make()

    async def away(*_: object, **__: object) -> Any:
        raise Gone("away")

    monkeypatch.setattr("gateway.observability.workers.read_heartbeats", away)
    answer = await send(gateway, HELLO)
    assert error_in(answer, 503, "store_unavailable")["type"] == "server_error"
    error_in(await gateway.client.get(MODELS), 503, "store_unavailable")


async def test_a_gateway_under_pressure_gets_503(fake_gateway: Gateway) -> None:
    fake_gateway.state.pressure.refusing = True
    error_in(await send(fake_gateway, HELLO), 503, "under_pressure")
    error_in(await send(fake_gateway, {"input": "x"}, EMBEDDINGS), 503, "under_pressure")


BODIES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 400, "malformed_json"),
    "no JSON": (b"{", 400, "malformed_json"),
    "a list": (b"[]", 400, "invalid_type"),
    "too deep": (b"[" * 70 + b"]" * 70, 400, "nested_too_deep"),
}


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
@pytest.mark.parametrize(("body", "status", "code"), BODIES.values(), ids=list(BODIES))
async def test_malformed_bodies_are_rejected(
    fake_gateway: Gateway, path: str, body: bytes, status: int, code: str
) -> None:
    error_in(await send(fake_gateway, body, path), status, code)


async def test_long_bodies_and_wrong_types_are_rejected(fake_make: Make) -> None:
    gateway = fake_make(max_payload_bytes=2048)
    long = {"messages": [{"role": "user", "content": "x" * 3000}]}
    error_in(await send(gateway, long), 413, "payload_too_large")
    long["messages"][0]["content"] = "x" * 30_000
    error_in(await send(gateway, long), 413, "body_too_large")
    answer = await send(gateway, HELLO, content_type="text/plain")
    error_in(answer, 415, "unsupported_media_type")


async def test_cross_site_requests_and_other_hosts_are_rejected(fake_gateway: Gateway) -> None:
    answer = await send(fake_gateway, HELLO, origin="https://evil.example")
    assert error_in(answer, 403, "foreign_origin")["type"] == "permission_error"
    error_in(await send(fake_gateway, HELLO, host="evil.example"), 421, "misdirected_request")


async def test_malformed_idempotency_keys_are_rejected(fake_gateway: Gateway) -> None:
    answer = await send(fake_gateway, HELLO, idempotency_key=" ")
    error_in(answer, 400, "invalid_idempotency_key")


async def test_other_paths_keep_the_problem_format(fake_gateway: Gateway) -> None:
    check_problem(await fake_gateway.client.get("/v1/modelsx"), 404, "not_found")
    check_problem(await fake_gateway.client.get("/v1/chat"), 404, "not_found")
    check_problem(await fake_gateway.client.post(b"{"), 400, "malformed_json")
    assert is_openai(CHAT)
    assert is_openai("/v1/models/a/b")
    assert not is_openai("/v1/embeddings/x")


@pytest.mark.parametrize(
    ("pointer", "param"),
    [
        ("", None),
        ("/messages", "messages"),
        ("/messages/0/content", "messages[0].content"),
        ("/messages/12/content/3", "messages[12].content[3]"),
        ("/tools/0/function/name", "tools[0].function.name"),
    ],
)
def test_json_pointers_become_openai_parameter_names(pointer: str, param: str | None) -> None:
    assert openai_error_view(400, "x", "y", pointer).error.param == param


# -- keys ------------------------------------------------------------------------------------------


async def test_a_missing_or_invalid_key_gets_401(fake_make: Make) -> None:
    gateway = fake_make(auth="required")
    for path in (CHAT, EMBEDDINGS):
        for headers in ({}, bearer("sk-local"), bearer("sluice_x")):
            answer = await send(gateway, HELLO, path, **headers)
            error = error_in(answer, 401, "invalid_api_key")
            assert error["type"] == "invalid_request_error"
            assert "Bearer" in (answer.header("www-authenticate") or "")
    error_in(await gateway.client.get(MODELS), 401, "invalid_api_key")


@pytest.mark.parametrize("filler", ["Bearer sk-local", "bearer none", "Bearer x y", "Bearer "])
async def test_placeholder_keys_are_ignored_on_loopback(fake_gateway: Gateway, filler: str) -> None:
    answer = await fake_gateway.client.get(MODELS, {"authorization": filler})
    assert answer.status == 200
    # Not on other paths, not for one of Sluice's keys, not from other machines.
    check_problem(
        await fake_gateway.client.get("/v1/status", {"authorization": filler}), 401, "invalid_key"
    )
    remote = await client_at(fake_gateway).get(MODELS, {"authorization": filler})
    error_in(remote, 401, "invalid_api_key")


@pytest.mark.parametrize(
    "credentials",
    [
        [("authorization", "Bearer sluice_oops")],
        [("authorization", "Bearer SLUICE_k3x9q2ab_x")],
        [("authorization", "Basic eDp5")],
        [("authorization", "Bearerx")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
    ],
)
async def test_other_credentials_are_checked_on_loopback(
    fake_gateway: Gateway, credentials: list[tuple[str, str]]
) -> None:
    error_in(await fake_gateway.client.get(MODELS, credentials), 401, "invalid_api_key")


async def test_a_sluice_key_counts_on_loopback_too(gateway: Gateway) -> None:
    key = await key_for(gateway, tenant="shop")
    request = await work(gateway, **bearer(key))
    other = await key_for(gateway, tenant="bakery")
    path_of_job = f"/v1/jobs/{request.job_id}"
    assert (await gateway.client.get(path_of_job, bearer(key))).status == 200
    check_problem(await gateway.client.get(path_of_job, bearer(other)), 404, "job_not_found")
    await request.finish()
    assert (await request.answer()).status == 200


async def test_both_scopes_are_required(fake_make: Make) -> None:
    gateway = fake_make(auth="required")
    for scope in ("jobs:write", "jobs:read", "metrics"):
        key = await key_for(gateway, scopes=frozenset({scope}))
        for path in (CHAT, EMBEDDINGS):
            error = error_in(await send(gateway, HELLO, path, **bearer(key)), 403, SCOPE)
            assert "All of these scopes" in error["message"]
        assert (await gateway.client.get(MODELS, bearer(key))).status == 200
    both = await key_for(gateway, scopes=frozenset({"jobs:write", "jobs:read"}))
    request = await work(gateway, **bearer(both))
    await request.finish()
    assert (await request.answer()).status == 200


SCOPE = "insufficient_scope"


async def test_a_key_for_other_tasks_is_rejected(fake_make: Make) -> None:
    gateway = fake_make(auth="required")
    key = await key_for(gateway, tasks=frozenset({"embed"}))
    error_in(await send(gateway, HELLO, **bearer(key)), 403, "task_not_allowed")


async def test_revoking_the_key_ends_the_request(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.auth.callers.CACHE_TTL_S", 0.0)
    gateway = make(auth="required", sse_heartbeat_s=0.05)
    key = await key_for(gateway)
    request = await work(gateway, **bearer(key))
    await gateway.state.access.keys.revoke(key.split("_")[1])
    error_in(await request.answer(), 401, "invalid_api_key")
    assert json.dumps(await request.status()) == '"queued"'


async def test_a_page_of_an_allowed_origin_can_use_the_sdk(fake_make: Make) -> None:
    """The headers of the SDK are allowed, and the job id is readable."""
    page = {"origin": "https://app.example"}
    gateway = fake_make(allowed_origins="https://app.example")
    preflight_headers = {**page, "access-control-request-method": "POST"}
    preflight = await gateway.client.send("OPTIONS", CHAT, preflight_headers)
    allowed = (preflight.header("access-control-allow-headers") or "").lower()
    assert {"authorization", "x-stainless-lang", "x-stainless-timeout"} <= set(allowed.split(", "))
    request = await work(gateway, **page)
    await request.finish()
    exposed = (await request.answer()).header("access-control-expose-headers") or ""
    assert "X-Job-Id" in exposed
