"""Headers of every response."""

from __future__ import annotations

import pytest

from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import CHAT, Gateway

pytestmark = pytest.mark.fakeredis_only

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
    unchanged = await gateway.client.get(
        f"/v1/jobs/{job_id}", {"if-none-match": job.header("etag") or ""}
    )
    assert unchanged.status == 304
    check_strict(unchanged)


async def test_streams_have_security_headers(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    check_strict(Answer(stream.status, stream.headers, b""))
    assert stream.header("cache-control") == "no-store, no-transform"
