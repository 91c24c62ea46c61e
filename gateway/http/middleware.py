"""The outermost middleware: host and origin checks, request ids, body limits, security headers,
access log, and a problem for unexpected exceptions."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.common.observability import logs
from sluice.gateway.events.slots import STREAM_SLOT
from sluice.gateway.features.images.upload.sink import FORM_BYTES
from sluice.gateway.http.body import TOO_LARGE, Body, DiscardLimits
from sluice.gateway.http.paths import DASHBOARD_SESSION, is_image_upload, may_have_document
from sluice.gateway.http.problems import Problem, gateway_stopping
from sluice.gateway.http.security import (
    HostPolicy,
    OriginPolicy,
    check_path,
    effective_method,
    missing_security_headers,
    require_single_header,
)
from sluice.gateway.jobs.ids import new_request_id
from sluice.gateway.observability.metrics.http import HttpMetrics

log = logging.getLogger("sluice.gateway.access")

#: Statuses of requests that were not authenticated or not authorised.
AUTH_REFUSALS = (401, 403)
#: Most bytes of a request to sign in to the dashboard, and seconds for them to arrive.
SIGN_IN_BYTES = 1024
SIGN_IN_TIMEOUT_S = 2.0
#: Seconds for which the rest of a refused upload is read, so that the client receives the error.
UPLOAD_DISCARD_S = 30.0
_CLOSE = (b"connection", b"close")
_SAFE_ID = re.compile(rb"\A[A-Za-z0-9._:-]{1,128}\Z")


class RequestMiddleware:
    """Pure ASGI, because every request and every event passes it."""

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        body_timeout_s: float = 30.0,
        hosts: HostPolicy | None = None,
        origins: OriginPolicy | None = None,
        numbers: HttpMetrics | None = None,
        max_document_bytes: int = 0,
        max_upload_bytes: int = 0,
        upload_timeout_s: float = 30.0,
    ) -> None:
        self._app = app
        self._max_document_bytes = max_document_bytes or max_body_bytes
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._max_upload_bytes = max_upload_bytes + FORM_BYTES
        self._upload_timeout_s = upload_timeout_s
        self._upload_discard = DiscardLimits(2 * self._max_upload_bytes, UPLOAD_DISCARD_S)
        self._hosts = hosts or HostPolicy()
        self._origins = origins or OriginPolicy()
        self._metrics = numbers or HttpMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _SAFE_ID.match(given) else new_request_id()
        logs.begin_request(request_id)
        id_header = (b"x-request-id", request_id.encode())
        numbers = self._metrics
        numbers.in_flight += 1
        started = time.perf_counter()
        answered = 0.0
        status = 0
        upload = is_image_upload(scope["method"], scope["path"])
        body = self._body(scope, receive, upload=upload)
        by_origin = self._origins.default_headers

        async def send_with_id(message: Message) -> None:
            nonlocal answered, status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = time.perf_counter()
                body.cancel_timeout()
                given_headers = message["headers"]
                if upload and body.awaits_continue and _CLOSE not in given_headers:
                    # The client will not send the body; its next request would be read as the body.
                    given_headers = [*given_headers, _CLOSE]
                message["headers"] = [
                    *given_headers,
                    id_header,
                    *by_origin,
                    *missing_security_headers(given_headers),
                ]
            elif (
                (status == TOO_LARGE or upload)
                and not body.complete
                and not message.get("more_body")
            ):
                # Many clients read only after sending; closing now would lose the response.
                await send({**message, "more_body": True})
                await body.discard()
                message = {**message, "body": b""}
            await send(message)

        try:
            if len(headers) != len(scope["headers"]):
                require_single_header(scope, b"host")
                require_single_header(scope, b"origin")
            self._hosts.check(scope, headers.get(b"host"))
            check_path(scope["path"])
            app = self._app
            if b"origin" in headers or b"sec-fetch-site" in headers:
                by_origin = self._origins.check(effective_method(scope), headers)
                app = self._origins.preflight(scope["method"], headers) or app
            body.check_declared(headers, refuse=not upload)
            await app(scope, body.receive, send_with_id)
        except Problem as problem:
            await self._answer(problem, scope, receive, send_with_id, status)
        except asyncio.CancelledError:
            if status:
                raise
            body.give_up()
            await self._answer(gateway_stopping(), scope, receive, send_with_id, status)
        except Exception:
            log.exception("%s %s failed", scope["method"], quote(scope["path"]))
            internal_error = Problem(
                500,
                "internal_error",
                "Internal error; the log has the details under this request id.",
            )
            await self._answer(internal_error, scope, receive, send_with_id, status)
        finally:
            if STREAM_SLOT in scope:
                scope[STREAM_SLOT].release()
            numbers.record_response(scope, status, (answered or time.perf_counter()) - started)
        if log.isEnabledFor(logging.INFO):
            ms = (time.perf_counter() - started) * 1000
            source = _remote_address(scope) if status in AUTH_REFUSALS else ""
            log.info("%s %s %d %.1fms%s", scope["method"], quote(scope["path"]), status, ms, source)

    def _body(self, scope: Scope, receive: Receive, *, upload: bool) -> Body:
        if upload:
            bounds = self._max_upload_bytes, self._upload_timeout_s
            return Body(receive, *bounds, self._upload_discard)
        if scope["path"] == DASHBOARD_SESSION:  # read before it is known whose request it is
            return Body(receive, SIGN_IN_BYTES, min(SIGN_IN_TIMEOUT_S, self._body_timeout_s))
        is_long = may_have_document(scope["method"], scope["path"])
        most = self._max_document_bytes if is_long else self._max_body_bytes
        return Body(receive, most, self._body_timeout_s)

    @staticmethod
    async def _answer(
        problem: Problem, scope: Scope, receive: Receive, send: Send, status: int
    ) -> None:
        if not status:  # no response was sent yet
            await problem.response(scope)(scope, receive, send)


def _remote_address(scope: Scope) -> str:
    """The client address of a refused request, for the log and for tools that block addresses."""
    client = scope.get("client")
    return f" from {client[0]}" if client else ""
