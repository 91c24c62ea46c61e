"""Keeps the connection to one MCP server: starts or calls it, lists its tools, reconnects."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any

from sluice.common.contracts.models import McpState
from sluice.common.observability.heartbeats import McpReading
from sluice.worker.features.tools.errors import OutcomeUnknown, ToolFailed, ToolUnavailable
from sluice.worker.features.tools.mcp import protocol
from sluice.worker.features.tools.mcp.config import McpServer
from sluice.worker.features.tools.tool import Call, Tool, make_tool

if TYPE_CHECKING:
    from mcp import Client

log = logging.getLogger(__name__)

#: Seconds within which a server must list its tools.
CONNECT_S = 15.0
#: Seconds between two checks of the server and its tools.
POLL_EVERY_S = 60.0
#: Seconds before the first reconnect, doubled each time up to BACKOFF_MAX_S.
BACKOFF_S, BACKOFF_MAX_S = 0.5, 60.0
#: After a connection of this duration, the backoff starts over.
STABLE_AFTER_S = 10.0
#: Seconds for an orderly shutdown; the package gives a child process four.
CLOSE_S = 6.0
MOST_TOOLS = 200
MOST_REASON_CHARS = 300


class McpConnection:
    """One server and its tools. Tools of a server that is down stay listed, and fail."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self._server = server
        self._client: Client | None = None
        self._state = McpState.STARTING
        self._reason = "it has not answered yet"
        self._restarts = 0
        self._closing = asyncio.Event()
        #: Set when the connection is known to be lost.
        self._lost = asyncio.Event()
        #: Set when the server announces a change of its tools.
        self._changed = asyncio.Event()
        #: Set when the server is up, or the first attempt has failed.
        self.settled = asyncio.Event()
        self._tools: dict[str, Tool] = {}
        #: Invalid tools, which were logged once.
        self._ignored: set[str] = set()

    # -- ToolSource -------------------------------------------------------------------------------

    @property
    def tools(self) -> dict[str, Tool]:
        """Its tools by full name."""
        return self._tools

    @property
    def unavailable_reason(self) -> str:
        """Why it cannot be called; empty if it can."""
        if self._state is McpState.UP:
            return ""
        return f"MCP server {self.name} is {self._state.value}: {self._reason}"

    @property
    def reading(self) -> McpReading:
        """State for the worker's heartbeat."""
        return McpReading(
            name=self.name,
            state=self._state,
            reason=self._reason,
            tools=len(self._tools),
            restarts=self._restarts,
        )

    # -- connection -------------------------------------------------------------------------------

    async def run(self) -> None:
        delay_s = BACKOFF_S
        while not self._closing.is_set():
            began = time.monotonic()
            reason = await self._run_once()
            if self._closing.is_set():
                break
            if time.monotonic() - began > STABLE_AFTER_S:
                delay_s = BACKOFF_S
            self._set_down(reason)
            log.warning("MCP server %s is down: %s; next try in %.1f s", self.name, reason, delay_s)
            await _wait(delay_s * random.uniform(0.75, 1.0), self._closing)
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
            self._restarts += 1

    async def close(self) -> None:
        """Make `run` return after an orderly shutdown."""
        self._closing.set()

    async def _run_once(self) -> str:
        """One connection from start to end; returns why it ended."""
        self._lost.clear()
        up = asyncio.Event()
        # The package requires that its contexts are entered and left in the same task.
        connection_task = asyncio.create_task(self._stay_connected(up))
        try:
            await _wait(CONNECT_S, up, self._closing, task=connection_task)
            if not up.is_set() and not connection_task.done():
                connection_task.cancel()  # only once: a clean shutdown takes time
            await asyncio.wait({connection_task}, timeout=None if up.is_set() else CLOSE_S)
        except asyncio.CancelledError:
            connection_task.cancel()
            await asyncio.wait({connection_task}, timeout=CLOSE_S)
            raise
        finally:
            self._client = None
        if not connection_task.done() or connection_task.cancelled():
            return f"it did not answer within {CONNECT_S:g} s"
        error = connection_task.exception()
        return _root_cause(error) if error is not None else "the connection has ended"

    async def _stay_connected(self, up: asyncio.Event) -> None:
        async with protocol.connect(
            self._server, on_end=self._on_lost, on_change=self._changed.set
        ) as client:
            await self._load_tools(client)
            self._client = client
            self._state, self._reason = McpState.UP, ""
            up.set()
            self.settled.set()
            log.info("MCP server %s is up with %d tools", self.name, len(self._tools))
            while not self._closing.is_set() and not self._lost.is_set():
                await _wait(POLL_EVERY_S, self._closing, self._lost, self._changed)
                if not self._closing.is_set() and not self._lost.is_set():
                    await asyncio.wait_for(self._load_tools(client), CONNECT_S)

    async def _load_tools(self, client: Client) -> None:
        self._changed.clear()
        found: dict[str, Tool] = {}
        for listed in await protocol.list_tools(client, MOST_TOOLS):
            try:
                tool = make_tool(
                    self._caller(listed.name, repeatable=listed.repeatable),
                    name=f"{self.name}.{listed.name}",
                    description=listed.description or listed.name,
                    parameters=listed.parameters,
                    timeout_s=self._server.timeout_s,
                    repeatable=listed.repeatable,
                )
            except ValueError as error:
                if listed.name not in self._ignored:
                    self._ignored.add(listed.name)
                    log.warning("MCP server %s: tool ignored: %s", self.name, error)
                continue
            found[tool.name] = tool
        self._tools = found

    def _on_lost(self) -> None:
        """Mark the connection as lost at once, because closing it may take time."""
        self._lost.set()
        self._client = None
        if self._state is McpState.UP:
            self._set_down("the connection has ended")

    def _set_down(self, reason: str) -> None:
        self._state, self._reason = McpState.DOWN, reason[:MOST_REASON_CHARS]
        self.settled.set()

    # -- calls -------------------------------------------------------------------------------------

    def _caller(self, tool: str, *, repeatable: bool) -> Any:
        async def call_server(call: Call, arguments: dict[str, Any]) -> Any:
            client = self._client
            if client is None:
                raise ToolUnavailable(self.unavailable_reason)
            try:
                return await protocol.call_tool(client, tool, arguments, self._lost.is_set)
            except protocol.ConnectionLost as error:
                self._on_lost()
                text = f"MCP server {self.name} disconnected during the call: {error}"
                if repeatable:
                    raise ToolUnavailable(text) from None
                raise OutcomeUnknown(text) from None
            except protocol.CallRefused as error:
                raise ToolFailed(f"{self.name}.{tool}: {error}") from None

        return call_server


async def _wait(
    seconds: float, *events: asyncio.Event, task: asyncio.Task[Any] | None = None
) -> None:
    """Wait for one of the events or the task, at most `seconds`."""
    waiting: set[asyncio.Task[Any]] = {asyncio.create_task(event.wait()) for event in events}
    try:
        await asyncio.wait(
            waiting if task is None else waiting | {task},
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        for each in waiting:
            each.cancel()


def _root_cause(error: BaseException) -> str:
    """The innermost error of an exception group."""
    while True:
        inner = getattr(error, "exceptions", None)
        if not inner:
            break
        error = inner[0]
    text = str(error) or type(error).__name__
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
