"""Headers of every response."""

from __future__ import annotations

import pytest

from tests.gateway.asgi import Answer
from tests.gateway.conftest import CHAT, Gateway

LOCKED = "default-src 'none'; frame-ancestors 'none'"


def check_strict(answer: Answer, policy: str | None = LOCKED) -> None:
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("referrer-policy") == "no-referrer"
    assert answer.header("cross-origin-resource-policy") == "same-origin"
    assert answer.header("server") is None
    assert answer.header("cache-control")
    if policy is not None:
        assert answer.header("content-security-policy") == policy


@pytest.mark.parametrize("target", ["/healthz", "/openapi.json", "/v1/dlq", "/nowhere", "/metrics"])
async def test_every_get_response_has_security_headers(fake_gateway: Gateway, target: str) -> None:
    answer = await fake_gateway.client.get(target)
    check_strict(answer)
    assert answer.header("cache-control") == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "null"},
        {"content-type": "text/plain"},
        {"content-length": "99999999"},
    ],
    ids=str,
)
async def test_every_rejection_has_security_headers(
    fake_gateway: Gateway, headers: dict[str, str]
) -> None:
    answer = await fake_gateway.client.send("POST", "/v1/jobs", headers)
    assert answer.status >= 400
    check_strict(answer)


async def test_job_responses_have_security_headers(fake_gateway: Gateway) -> None:
    answer = await fake_gateway.client.post(CHAT)
    assert answer.status == 202
    check_strict(answer)
    job_id = answer.json()["job_id"]
    job = await fake_gateway.client.get(f"/v1/jobs/{job_id}")
    check_strict(job)
    assert job.header("cache-control") == "no-cache", "the header of the route is kept"
    unchanged = await fake_gateway.client.get(
        f"/v1/jobs/{job_id}", {"if-none-match": job.header("etag") or ""}
    )
    assert unchanged.status == 304
    check_strict(unchanged)


async def test_streams_have_security_headers(fake_gateway: Gateway) -> None:
    job_id = await fake_gateway.create()
    stream = await fake_gateway.client.watch(job_id)
    check_strict(Answer(stream.status, stream.headers, b""))
    assert stream.header("cache-control") == "no-store, no-transform"


async def test_the_docs_page_has_its_own_policy(fake_gateway: Gateway) -> None:
    answer = await fake_gateway.client.get("/docs")
    check_strict(answer, None)
    policy = answer.header("content-security-policy") or ""
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.header("cross-origin-opener-policy") == "same-origin"
    assert answer.header("permissions-policy")
