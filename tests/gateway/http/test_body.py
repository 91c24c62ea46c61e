"""Bodies that are refused: the rest is read after the response, which a reset would discard."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.gateway.http.middleware import RequestMiddleware


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
