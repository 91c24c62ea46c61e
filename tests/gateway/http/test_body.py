"""Bodies that are refused: with too many parts, or too long. The rest of a long body is read after
the response, which a reset would discard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.common import codec
from sluice.gateway.http.middleware import RequestMiddleware
from tests.support.gateway.asgi import JSON
from tests.support.gateway.harness import Gateway, Make, check_problem

pytestmark = pytest.mark.fakeredis_only


async def test_the_rest_of_a_refused_body_is_read() -> None:
    answered = asyncio.Event()
    log: list[str] = []
    rest = [b"x" * 200, b"2", b"3"]

    async def read_body(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    async def receive() -> dict[str, Any]:
        if len(rest) < 3:  # the client sends the rest after it was answered
            await answered.wait()
        log.append("read")
        return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest)}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 413
        else:
            log.append("more" if message.get("more_body") else "end")
            answered.set()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "headers": [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")],
    }
    await RequestMiddleware(read_body, max_body_bytes=100)(scope, receive, send)
    assert log == ["read", "more", "read", "read", "end"]


ELEMENTS: tuple[bytes, ...] = (b"[]", b"{}", b"1", b'""', b'{"a":1}', b'"a,[{"', rb'"\""')


async def test_a_body_with_too_many_parts_is_refused_before_it_is_parsed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make(max_document_bytes=1 << 20)
    workflow, documents = "/api/workflow/jobs", "/v1/rag/default/documents"
    parsed: list[bytes] = []
    real = codec.loads

    def loads(raw: bytes) -> Any:
        parsed.append(raw)
        return real(raw)

    monkeypatch.setattr(codec, "loads", loads)
    for element in ELEMENTS:
        body = b'{"text":[' + b",".join([element] * 50_001) + b"]}"
        for path in ("/v1/jobs", workflow, documents):
            if path == "/v1/jobs" and len(body) > 200_000:
                continue
            answer = await gateway.client.send("POST", path, JSON, body)
            assert answer.status == 400, (element, path)
            assert b"too_many_parts" in answer.body, (element, path)
    assert not any(len(raw) > 50_000 for raw in parsed)
    assert await gateway.redis.keys("job:*") == []
    roomy = make(max_payload_bytes=400_000)
    many = {"task": "chat", "payload": {"n": [1] * 99_000}}
    assert (await roomy.client.post(many)).status == 202, "MAX_PAYLOAD_BYTES allows more"
    many["payload"] = {"n": [1] * 100_001}
    check_problem(await roomy.client.post(many), 400, "too_many_parts")


async def test_signs_within_strings_are_not_parts(gateway: Gateway) -> None:
    odd = 'a,b,[{"\\' * 4000 + "," * 60_000
    for payload in ({"text": odd}, {"n": [1] * 49_000}, {"rows": ["a,b,c"] * 20_000}):
        assert (await gateway.client.post({"task": "chat", "payload": payload})).status == 202
    table = {"text": "1,2,3\n" * 200_000}
    answer = await gateway.client.send("POST", "/v1/rag/default/documents", JSON, table)
    assert answer.status == 202


async def test_only_requests_with_documents_have_long_bodies(gateway: Gateway) -> None:
    body = b'{"text":"' + b"x" * 300_000 + b'"}'
    job = "/api/workflow/jobs/wf_20260214_001"
    long = {"content-length": "300011", **JSON}
    for method, path in (
        *(("POST", f"{job}/{action}") for action in ("undo", "cancel", "proposals/bulk")),
        *(("POST", f"{job}/steps/sources/execute"), ("PATCH", f"{job}/proposals/x/ontology")),
        *(
            ("POST", "/api/workflow/webhooks/dlq/redrive"),
            ("DELETE", "/v1/rag/default/documents/x"),
        ),
        *(("GET", "/v1/rag/default/search"), ("PUT", "/v1/rag/default/documents")),
    ):
        answer = await gateway.client.begin(method, path, long, [body]).answer()
        assert answer.status == 413, (method, path)
    answer = await gateway.client.send("POST", "/v1/rag/default/documents", JSON, body)
    assert answer.status == 202
    assert (await gateway.client.send("POST", "/api/workflow/jobs", JSON, body)).status == 422
