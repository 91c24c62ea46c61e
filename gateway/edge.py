"""The outermost layer: request ids, the body limit, one log line a request, no naked 500."""

from __future__ import annotations

import logging
import re
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common import logs
from gateway.ids import new_request_id
from gateway.problems import Problem

log = logging.getLogger("gateway.access")

_SAFE_ID = re.compile(rb"\A[A-Za-z0-9._:-]{1,128}\Z")


class Edge:
    """Pure ASGI, because it is on the way of every request and every event."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _SAFE_ID.match(given) else new_request_id()
        logs.request_id.set(request_id)
        id_header = (b"x-request-id", request_id.encode())
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], id_header]
            await send(message)

        try:
            limited = self._limited(headers, receive)
            await self._app(scope, limited, send_with_id)
        except Problem as problem:
            await self._answer(problem, scope, receive, send_with_id, status)
        except Exception:
            log.exception("%s %s failed", scope["method"], quote(scope["path"]))
            mistake = Problem(
                500,
                "internal_error",
                "Sluice made a mistake; the log has the details under this request id.",
            )
            await self._answer(mistake, scope, receive, send_with_id, status)
        if log.isEnabledFor(logging.INFO):
            ms = (time.perf_counter() - started) * 1000
            log.info("%s %s %d %.1fms", scope["method"], quote(scope["path"]), status, ms)

    @staticmethod
    async def _answer(
        problem: Problem, scope: Scope, receive: Receive, send: Send, status: int
    ) -> None:
        if not status:  # nothing was sent yet
            await problem.response(scope["path"])(scope, receive, send)

    def _limited(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Refuse a long body by its header, or at the first byte too many."""
        limit = self._max_body_bytes
        declared = headers.get(b"content-length", b"").lstrip(b"0")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            raise self._too_large()
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    raise self._too_large()
            return message

        return counting

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "body_too_large",
            f"The body is longer than {self._max_body_bytes} bytes.",
            headers={"Connection": "close"},  # what follows on this connection is the rest of it
        )
