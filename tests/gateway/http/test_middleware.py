"""The outermost middleware: request ids, access log, problems for 500, and security headers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pytest

from sluice.common.observability import logs
from sluice.gateway.auth.permissions import PERMISSIONS
from tests.support.gateway.asgi import Answer
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem

pytestmark = pytest.mark.fakeredis_only


@contextmanager
def access_log(read: Callable[[logging.LogRecord], Any]) -> Iterator[list[Any]]:
    """What `read` returns for each record of the access log, at its default level."""
    found: list[Any] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(read(record))

    log, keep = logging.getLogger("sluice.gateway.access"), Keep(logging.INFO)
    level = log.level
    log.addHandler(keep)
    log.setLevel(logging.INFO)
    try:
        yield found
    finally:
        log.removeHandler(keep)
        log.setLevel(level)


async def test_log_lines_have_the_request_id(gateway: Gateway) -> None:
    with access_log(logs.TextFormatter("%(message)s").format) as lines:
        await gateway.client.post(CHAT, {"x-request-id": "abc"})
        for path in ("/nowhere", "/x%0A2026-01-01%20ERROR%20forged%0D", "/v1/jobs/%1B%5B31m%00"):
            await gateway.client.get(path)
    assert lines[0].startswith("POST /v1/jobs 202 ")
    assert "request_id=abc" in lines[0]
    assert lines[1].startswith("GET /nowhere 404 ")
    for line in lines:
        assert line.isprintable(), f"a path forges log lines: {line!r}"


CONTROLS = ("%0A", "%0D", "%00", "%1B", "%7F", "%C2%85", "%E2%80%A8", "%E2%80%A9")


async def test_no_path_may_have_control_characters(make: Make) -> None:
    gateway = make()
    for template in sorted({path for _, path in PERMISSIONS}):
        path = re.sub(r"\{[^}]*\}", "x", template)
        for place in (f"{path}%0A", f"{path}%0a?q=x", f"{path[:2]}%0A{path[2:]}"):
            for method in ("GET", "POST"):
                answer = await gateway.client.send(method, place)
                assert answer.status == 400, place
                assert b"control character" in answer.body, place
    for control in CONTROLS:
        check_problem(await gateway.client.get(f"/healthz{control}"), 400, "malformed_request")
    check_problem(await gateway.client.get("/%F0%9F%8E%AC%C2%A0"), 404, "not_found")


async def test_another_sites_page_cannot_start_a_search_with_a_line_break(make: Make) -> None:
    gateway = make()
    cross_site = {"sec-fetch-site": "cross-site"}
    search = "/v1/rag/default/search"
    check_problem(await gateway.client.get(f"{search}?q=x", cross_site), 403, "foreign_origin")
    answer = await gateway.client.get(f"{search}%0A?q=x&answer=true", cross_site)
    check_problem(answer, 400, "malformed_request")
    assert await gateway.redis.xlen("jobs:stream") == 0


async def test_a_request_does_not_inherit_the_log_fields_of_another(gateway: Gateway) -> None:
    """The server starts a pipelined request in the context of the one before it."""
    before = {logs.job_id: "j1", logs.tenant: "shop", logs.trace_id: "0af7"}
    tokens = {name: name.set(value) for name, value in before.items()}
    try:
        with access_log(logs.context_fields) as lines:
            await gateway.client.get("/healthz", {"x-request-id": "abc"})
    finally:
        for name, token in tokens.items():
            name.reset(token)
    assert lines == [{"request_id": "abc"}]


async def test_an_unexpected_error_is_a_problem_without_details(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.state.store.get = raising(RuntimeError("secret internals"))
    answer = await gateway.client.get("/v1/jobs/x", {"x-request-id": "abc"})
    problem = check_problem(answer, 500, "internal_error")
    assert "secret" not in answer.body.decode()
    assert problem["request_id"] == "abc"
    assert "secret internals" in caplog.text


async def test_instance_is_the_path_of_the_request(gateway: Gateway) -> None:
    for target in ("/v1/jobs/no-such", "/v1/jobs/a%3Fb", "/no%20where"):
        answer = await gateway.client.get(f"{target}?token=secret")
        assert unquote(answer.json()["instance"]) == unquote(target)


async def test_websockets_are_closed(gateway: Gateway) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope: Any = {"type": "websocket", "path": "/v1/jobs/x/events", "asgi": {"version": "3.0"}}
    scope |= {"raw_path": b"", "query_string": b"", "root_path": "", "headers": []}
    await gateway.app({**scope, "subprotocols": []}, receive, send)
    assert sent[0]["type"] == "websocket.close"


async def test_an_incomplete_body_creates_no_job(gateway: Gateway) -> None:
    headers = {"content-type": "application/json", "content-length": "100"}
    exchange = gateway.client.begin("POST", "/v1/jobs", headers, [])
    exchange._hung_up.set()
    answer = await exchange.answer()
    check_problem(answer, 400, "incomplete_body")
    assert await gateway.redis.dbsize() == 0


LOCKED = "default-src 'none'; frame-ancestors 'none'"


def check_strict(answer: Answer, policy: str | None = LOCKED) -> None:
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("referrer-policy") == "no-referrer"
    assert answer.header("cross-origin-resource-policy") == "same-origin"
    assert answer.header("server") is None
    assert answer.header("cache-control")
    if policy is not None:
        assert answer.header("content-security-policy") == policy


async def test_every_response_has_security_headers(gateway: Gateway) -> None:
    for target in ("/healthz", "/v1/dlq", "/nowhere", "/metrics"):
        answer = await gateway.client.get(target)
        check_strict(answer)
        assert answer.header("cache-control") == "no-store", target
    for headers in (
        {"host": "evil.example"},
        {"origin": "null"},
        {"content-type": "text/plain"},
        {"content-length": "99999999"},
    ):
        answer = await gateway.client.send("POST", "/v1/jobs", headers)
        assert answer.status >= 400
        check_strict(answer)


async def test_job_responses_have_security_headers(gateway: Gateway) -> None:
    answer = await gateway.client.post(CHAT)
    assert answer.status == 202
    check_strict(answer)
    job_id = answer.json()["job_id"]
    job = await gateway.client.get(f"/v1/jobs/{job_id}")
    check_strict(job)
    assert job.header("cache-control") == "no-cache", "the header of the route is kept"
    known = {"if-none-match": job.header("etag") or ""}
    unchanged = await gateway.client.get(f"/v1/jobs/{job_id}", known)
    assert unchanged.status == 304
    check_strict(unchanged)
    stream = await gateway.client.watch(job_id)
    check_strict(Answer(stream.status, stream.headers, b""))
    assert stream.header("cache-control") == "no-store, no-transform"
