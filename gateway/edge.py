"""The outermost layer: request ids, the body limit, one log line a request, no naked 500."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common import logs
from gateway.ids import new_request_id
from gateway.problems import Problem, unavailable

log = logging.getLogger("gateway.access")

_SAFE_ID = re.compile(rb"\A[A-Za-z0-9._:-]{1,128}\Z")


TOO_LARGE = 413
#: How much of a refused body is read and thrown away, and for how long.
REST_BYTES = 16 << 20
REST_S = 2.0


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
        body = _Body(receive, self._max_body_bytes)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], id_header]
            elif status == TOO_LARGE and not body.complete and not message.get("more_body"):
                # Many clients read only when all is sent; a closed door would lose the answer.
                await send({**message, "more_body": True})
                await body.discard()
                message = {**message, "body": b""}
            await send(message)

        try:
            body.check_declared(headers)
            await self._app(scope, body.receive, send_with_id)
        except Problem as problem:
            await self._answer(problem, scope, receive, send_with_id, status)
        except asyncio.CancelledError:
            # The server gives up on requests that hold up its end; the client is to ask again.
            if status:
                raise
            stopping = unavailable("this gateway is stopping")
            await self._answer(stopping, scope, receive, send_with_id, status)
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


class _Body:
    """A request's body on its way in: counted, and refused at the first byte too many."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._received = 0
        self.complete = False

    def check_declared(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a long body by its header, before a byte of it is read."""
        declared = headers.get(b"content-length", b"").lstrip(b"0")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > self._limit):
            raise self._too_large()

    async def receive(self) -> Message:
        """ASGI's receive."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.complete = not message.get("more_body")
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                raise self._too_large()
        return message

    async def discard(self) -> None:
        """Read what still comes of a refused body, and throw it away."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._discard(), REST_S)

    async def _discard(self) -> None:
        left = REST_BYTES
        while left > 0:
            message = await self._receive()
            if message["type"] != "http.request" or not message.get("more_body"):
                return
            left -= len(message.get("body", b""))

    def _too_large(self) -> Problem:
        return Problem(
            TOO_LARGE,
            "body_too_large",
            f"The body is longer than {self._limit} bytes.",
            headers={"Connection": "close"},  # what follows on this connection is the rest of it
        )
