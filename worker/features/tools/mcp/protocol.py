"""Wrapper of the `mcp` package, which is imported on demand because it needs 64 MiB."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.common.version import VERSION
from sluice.worker.features.tools.mcp import child
from sluice.worker.features.tools.mcp.config import McpServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

#: Most pages of a tool list that are read, in case a server's list does not end.
MOST_PAGES = 20
#: Seconds to connect and send a request, and between two parts of an answer.
HTTP_TIMEOUT_S, HTTP_READ_TIMEOUT_S = 10.0, 300.0
#: Message of the package for a closed connection.
_CLOSED = "Connection closed"


class ConnectionLost(Exception):
    """The server, or the connection to it, is gone."""


class CallRefused(Exception):
    """The server answered with an error."""


class McpTool(NamedTuple):
    """A tool as described by its server."""

    name: str
    description: str
    parameters: dict[str, Any]
    #: True if the server declares it read-only or idempotent.
    repeatable: bool


@asynccontextmanager
async def connect(
    server: McpServer, *, on_end: Callable[[], None], on_change: Callable[[], None]
) -> AsyncIterator[Client]:
    """Open a session.

    `on_end` is called as soon as the connection is closed, `on_change` when the server announces
    other tools.
    """
    from mcp import Client
    from mcp.types import Implementation, ToolListChangedNotification

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            on_change()

    async with Client(
        _watch_transport(_transport(server), on_end),
        client_info=Implementation(name="sluice", version=VERSION),
        message_handler=on_message,
        cache=None,
    ) as client:
        yield client


async def list_tools(client: Client, most: int) -> list[McpTool]:
    """The tools of a server, `most` at most."""
    found: list[McpTool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            hints = tool.annotations
            repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
            found.append(
                McpTool(tool.name, tool.description or "", dict(tool.input_schema), repeatable)
            )
        cursor = page.next_cursor
        if not cursor or len(found) >= most:
            break
    return found[:most]


async def call_tool(
    client: Client, tool: str, arguments: dict[str, Any], is_lost: Callable[[], bool]
) -> Any:
    """Call a tool; returns its structured content, else its text.

    Cancelling this call also cancels it on the server.
    """
    from mcp.shared.exceptions import MCPError
    from mcp.types import CONNECTION_CLOSED
    from pydantic import ValidationError

    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as error:
        # Servers may use the same code for other errors.
        if error.code == CONNECTION_CLOSED and (is_lost() or str(error) == _CLOSED):
            raise ConnectionLost(str(error)) from None
        raise CallRefused(str(error)) from None
    except (RuntimeError, ValidationError) as error:  # the result does not match the tool's schema
        raise CallRefused(str(error)) from None
    if result.is_error:
        raise CallRefused(_text(result) or "the server gave no reason")
    return result.structured_content if result.structured_content is not None else _text(result)


def _text(result: CallToolResult) -> str:
    """The text parts of a result; other parts are named."""
    parts: list[str] = []
    for part in result.content:
        text = getattr(part, "text", None)
        resource = getattr(part, "resource", None)
        if isinstance(text, str):
            parts.append(text)
        elif isinstance(getattr(resource, "text", None), str):
            parts.append(str(resource.text))  # type: ignore[union-attr]
        else:
            media = getattr(part, "mime_type", None) or getattr(resource, "mime_type", None) or ""
            parts.append(f"[{part.type} {media}]".replace(" ]", "]"))
    return "\n".join(parts)


# -- transports --------------------------------------------------------------------------------


def _transport(server: McpServer) -> Any:
    if server.url is not None:
        return _http(server)
    from mcp.client.stdio import StdioServerParameters, stdio_client

    assert server.command is not None
    environment = {"PATH": os.environ.get("PATH", os.defpath), **server.env}
    command = shutil.which(server.command, path=environment["PATH"])
    if command is None:
        raise FileNotFoundError(f"command {server.command!r} not found")
    # The server must end with the worker, even if the worker is killed.
    arguments = ["-I", child.__file__, str(os.getpid()), command, *server.args]
    parameters = StdioServerParameters(
        command=sys.executable, args=arguments, env=server.env, cwd=server.cwd
    )
    return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)


@asynccontextmanager
async def _http(server: McpServer) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    assert server.url is not None
    timeout = httpx2.Timeout(HTTP_TIMEOUT_S, read=HTTP_READ_TIMEOUT_S)
    async with (
        httpx2.AsyncClient(headers=server.headers, timeout=timeout) as http_client,
        streamable_http_client(server.url, http_client=http_client) as streams,
    ):
        yield streams


@asynccontextmanager
async def _watch_transport(transport: Any, on_end: Callable[[], None]) -> AsyncIterator[Any]:
    async with transport as (read_stream, write_stream):
        yield _WatchedStream(read_stream, on_end), write_stream


class _WatchedStream:
    """A message stream that reports its end; otherwise the next call would notice it."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)
