"""Keeps one MCP server going: starts or calls it, knows its tools, begins again when it ends."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any

from common.contracts.models import McpState
from common.observability.heartbeats import McpReading
from worker.features.tools.errors import OutcomeUnknown, ToolFailed, ToolUnavailable
from worker.features.tools.mcp import protocol
from worker.features.tools.mcp.config import McpServer
from worker.features.tools.tool import Call, Tool, make_tool

if TYPE_CHECKING:
    from mcp import Client

log = logging.getLogger(__name__)

#: Seconds until a server must have listed its tools.
CONNECT_S = 15.0
#: Seconds between two looks whether it still answers, and has the same tools.
POLL_EVERY_S = 60.0
#: Seconds until the first new try; doubled each time, up to so many.
BACKOFF_S, BACKOFF_MAX_S = 0.5, 60.0
#: A server that was up for so long begins with the shortest wait again.
STABLE_AFTER_S = 10.0
#: Seconds that it may take to end in good order; the package gives a child four.
CLOSE_S = 6.0
MOST_TOOLS = 200
MOST_REASON_CHARS = 300


class McpConnection:
    """One server and its tools. Those of a server that is gone stay known, and fail."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self._server = server
        self._client: Client | None = None
        self._state = McpState.STARTING
        self._reason = "it has not answered yet"
        self._restarts = 0
        self._closing = asyncio.Event()
        #: Set when the connection is known to be over.
        self._lost = asyncio.Event()
        #: Set when it says that it has other tools now.
        self._changed = asyncio.Event()
        #: Set when it is up, or its first try has failed.
        self.settled = asyncio.Event()
        self._tools: dict[str, Tool] = {}
        #: Tools that cannot be had, which was said once.
        self._left_out: set[str] = set()

    # -- what a toolbox asks -----------------------------------------------------------------------

    @property
    def tools(self) -> dict[str, Tool]:
        """Its tools, by their whole name."""
        return self._tools

    @property
    def unavailable_reason(self) -> str:
        """Why it cannot be called; empty if it can."""
        if self._state is McpState.UP:
            return ""
        return f"MCP server {self.name} is {self._state.value}: {self._reason}"

    @property
    def reading(self) -> McpReading:
        """What a worker tells of it."""
        return McpReading(
            name=self.name,
            state=self._state,
            reason=self._reason,
            tools=len(self._tools),
            restarts=self._restarts,
        )

    # -- its life ----------------------------------------------------------------------------------

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
        """End it in good order; `run` returns."""
        self._closing.set()

    async def _run_once(self) -> str:
        """One life of the connection; returns why it ended."""
        self._lost.clear()
        up = asyncio.Event()
        # Whoever enters the package's contexts must leave them: that is a task of its own.
        holding = asyncio.create_task(self._stay_connected(up))
        try:
            await _wait(CONNECT_S, up, self._closing, task=holding)
            if not up.is_set() and not holding.done():
                holding.cancel()  # once: what it does then takes its time
            await asyncio.wait({holding}, timeout=None if up.is_set() else CLOSE_S)
        except asyncio.CancelledError:
            holding.cancel()
            await asyncio.wait({holding}, timeout=CLOSE_S)
            raise
        finally:
            self._client = None
        if not holding.done() or holding.cancelled():
            return f"it did not answer within {CONNECT_S:g} s"
        error = holding.exception()
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
                if listed.name not in self._left_out:
                    self._left_out.add(listed.name)
                    log.warning("MCP server %s: a tool is left out: %s", self.name, error)
                continue
            found[tool.name] = tool
        self._tools = found

    def _on_lost(self) -> None:
        """The connection is over; it may take its time to be closed."""
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
                text = f"MCP server {self.name} broke off during the call: {error}"
                if repeatable:
                    raise ToolUnavailable(text) from None
                raise OutcomeUnknown(text) from None
            except protocol.CallRefused as error:
                raise ToolFailed(f"{self.name}.{tool}: {error}") from None

        return call_server


async def _wait(
    seconds: float, *events: asyncio.Event, task: asyncio.Task[Any] | None = None
) -> None:
    """Until one of the events, or the end of the task; no longer than so many seconds."""
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
    """The innermost cause of what may be a group of errors."""
    while True:
        inner = getattr(error, "exceptions", None)
        if not inner:
            break
        error = inner[0]
    text = str(error) or type(error).__name__
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
