"""The hot lane: the route that every job takes, served without FastAPI's machinery around it.

FastAPI's routing, exit stacks and telemetry cost more than all of the submit's own work. The lane
calls the very endpoint that is registered (and documented) with FastAPI, under the same edge and
with the same problems; a test compares the two ways answer by answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.problems import problem_of

Endpoint = Callable[[Request], Awaitable[Response]]


class GatewayApp(FastAPI):
    """A FastAPI app with a hot lane for one method and path."""

    _fast_path: tuple[str, str, ASGIApp] | None = None

    def add_fast_path(
        self, method: str, path: str, endpoint: Endpoint, wrap: Callable[[ASGIApp], Any]
    ) -> None:
        """Serve `method path` by `endpoint` directly, wrapped in what wraps the app."""

        async def lane(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await endpoint(Request(scope, receive, send))
            except Exception as error:
                problem = problem_of(error)
                if problem is None:
                    raise
                response = problem.response(scope["path"])
            await response(scope, receive, send)

        self._fast_path = method, path, wrap(lane)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, by the lane or by FastAPI."""
        if self._fast_path is not None and scope["type"] == "http":
            method, path, lane = self._fast_path
            if scope["path"] == path and scope["method"] == method:
                scope["app"] = self
                await lane(scope, receive, send)
                return
        await super().__call__(scope, receive, send)
