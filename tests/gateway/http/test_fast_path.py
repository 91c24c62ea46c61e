"""The fast path and FastAPI's routing give the same responses, except for random values."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from tests.support.gateway.asgi import Client
from tests.support.gateway.harness import CHAT, Gateway

pytestmark = pytest.mark.fakeredis_only

JSON = {"content-type": "application/json"}
REQUESTS: dict[str, tuple[bytes | object, dict[str, str]]] = {
    "good": (CHAT, JSON),
    "ttl": ({**CHAT, "ttl_s": 5}, JSON),
    "options": ({**CHAT, "timeout_s": 5, "max_attempts": 2, "backoff": {}}, JSON),
    "delay": ({**CHAT, "delay_s": 60}, JSON),
    "two times": ({**CHAT, "delay_s": 60, "run_at": "2020-01-01T00:00:00Z"}, JSON),
    "own request id": (CHAT, {**JSON, "x-request-id": "mine"}),
    "own trace": (CHAT, {**JSON, "traceparent": f"00-{'4b' * 16}-{'f0' * 8}-01"}),
    "unknown task": ({**CHAT, "task": "dance"}, JSON),
    "no payload": ({"task": "chat"}, JSON),
    "payload is a list": ({**CHAT, "payload": []}, JSON),
    "ttl is a float": ({**CHAT, "ttl_s": 1.5}, JSON),
    "unknown member": ({**CHAT, "x": 1}, JSON),
    "no object": ([], JSON),
    "no JSON": (b"{", JSON),
    "empty": (b"", JSON),
    "not UTF-8": (b'{"task":"\xff"}', JSON),
    "deep": (b"[" * 1000 + b"]" * 1000, JSON),
    "too long": (b'{"task":"chat","payload":{"x":"' + b"x" * 200_000 + b'"}}', JSON),
    "much too long": (b" " * 300_000, JSON),
    "no type": (CHAT, {"content-type": ""}),
    "a form": (CHAT, {"content-type": "application/x-www-form-urlencoded"}),
    "bad key": (CHAT, {**JSON, "idempotency-key": "\x7f"}),
    "wait, in vain": (CHAT, {**JSON, "prefer": "wait=0"}),
}


class WithoutFastPath:
    """The same app without the fast path."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await FastAPI.__call__(self._app, scope, receive, send)


def comparable(answer: Any) -> Any:
    headers = {
        name: value
        for name, value in answer.headers
        if name not in ("location", "link", "x-request-id")
    }
    body = answer.json()
    body.pop("request_id", None)
    if "job_id" in body:
        body["job_id"] = len(body["job_id"])
    return answer.status, headers, sorted(name for name, _ in answer.headers), body


async def test_the_fast_path_and_fastapi_give_the_same_response(gateway: Gateway) -> None:
    without_fast_path = Client(WithoutFastPath(gateway.app))
    for name, (body, headers) in REQUESTS.items():
        by_fast_path = await gateway.client.post(body, headers)
        by_fastapi = await without_fast_path.post(body, headers)
        assert comparable(by_fast_path) == comparable(by_fastapi), name
        if "x-request-id" in headers:
            ids = {answer.header("x-request-id") for answer in (by_fast_path, by_fastapi)}
            assert ids == {"mine"}
