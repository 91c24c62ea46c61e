"""The fast path: serves POST /v1/jobs without FastAPI's routing.

FastAPI's routing, exit stacks and telemetry cost more than the submission itself. The fast path
calls the same endpoint that is registered (and documented) with FastAPI, behind the same
middleware and with the same problems. A test compares both responses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.gateway.http.problems import problem_of

Endpoint = Callable[[Request], Awaitable[Response]]


class GatewayApp(FastAPI):
    """A FastAPI app with a fast path for one method and path."""

    _fast_path: tuple[str, str, ASGIApp] | None = None

    def add_fast_path(
        self, method: str, path: str, endpoint: Endpoint, wrap: Callable[[ASGIApp], Any]
    ) -> None:
        """Serve `method path` by `endpoint` directly, wrapped in the app's middleware."""

        async def lane(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await endpoint(Request(scope, receive, send))
            except Exception as error:
                problem = problem_of(error)
                if problem is None:
                    raise
                response = problem.response(scope)
            await response(scope, receive, send)

        self._fast_path = method, path, wrap(lane)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request by the fast path or by FastAPI."""
        if self._fast_path is not None and scope["type"] == "http":
            method, path, lane = self._fast_path
            if scope["path"] == path and scope["method"] == method:
                scope["app"] = self
                await lane(scope, receive, send)
                return
        await super().__call__(scope, receive, send)
