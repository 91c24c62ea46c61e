"""The one place that knows the `mcp` package, which is imported only where it is used: 64 MiB."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from common.version import VERSION
from worker.features.tools.mcp import child
from worker.features.tools.mcp.config import McpServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

#: Pages of a list that are read; a server that has no end must not hold us up.
MOST_PAGES = 20
#: Seconds to connect and to send a request; and between two pieces of an answer.
HTTP_TIMEOUT_S, HTTP_READ_TIMEOUT_S = 10.0, 300.0
#: What the package says when there is nobody to send to.
_CLOSED = "Connection closed"


class ConnectionLost(Exception):
    """The server, or the way to it, is gone."""


class CallRefused(Exception):
    """The server answered, and the answer is no."""


class McpTool(NamedTuple):
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: dict[str, Any]
    #: It says that it changes nothing, or nothing more the second time.
    repeatable: bool


@asynccontextmanager
async def connect(
    server: McpServer, *, on_end: Callable[[], None], on_change: Callable[[], None]
) -> AsyncIterator[Client]:
    """A session with a server; `on_end` is called as soon as the way to it is closed."""
    from mcp import Client
    from mcp.types import Implementation, ToolListChangedNotification

    async def hear(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            on_change()

    async with Client(
        _watch_transport(_transport(server), on_end),
        client_info=Implementation(name="sluice", version=VERSION),
        message_handler=hear,
        cache=None,
    ) as client:
        yield client


async def list_tools(client: Client, most: int) -> list[McpTool]:
    """All tools of a server, or as many as we care for."""
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
    """What a tool returns: its structured content, else its text.

    Whoever stops waiting cancels it: the server is told.
    """
    from mcp.shared.exceptions import MCPError
    from mcp.types import CONNECTION_CLOSED
    from pydantic import ValidationError

    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as error:
        # Servers have errors of their own with that number.
        if error.code == CONNECTION_CLOSED and (is_lost() or str(error) == _CLOSED):
            raise ConnectionLost(str(error)) from None
        raise CallRefused(str(error)) from None
    except (RuntimeError, ValidationError) as error:  # not what its own schema promises
        raise CallRefused(str(error)) from None
    if result.is_error:
        raise CallRefused(_text(result) or "it failed, and does not say why")
    return result.structured_content if result.structured_content is not None else _text(result)


def _text(result: CallToolResult) -> str:
    """The parts of a result that a model can read; the others are named."""
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
        raise FileNotFoundError(f"there is no command {server.command!r}")
    # The session may be closed in good order, or not: a worker that is killed takes it along.
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
    async with transport as (reading, writing):
        yield _WatchedStream(reading, on_end), writing


class _WatchedStream:
    """A stream of messages that tells when it ends; else one learns of it at the next call."""

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
