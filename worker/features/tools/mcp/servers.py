"""MCP servers as a service of the worker: started with it, kept going, ended with it."""

from __future__ import annotations

import asyncio
import logging

from common.observability.heartbeats import McpReading
from worker.features.tools.mcp.config import McpServer
from worker.features.tools.mcp.connection import CLOSE_S, McpConnection
from worker.features.tools.toolbox import ToolBox
from worker.registry import Service, WorkerServices

log = logging.getLogger(__name__)

#: How long the worker waits for its servers before it takes jobs without them.
START_S = 10.0
#: Member of the worker's heartbeat that tells of them.
HEARTBEAT_FIELD = "mcp"


class McpServers(Service):
    """One link a server; a broken one keeps neither the others nor the worker from working."""

    def __init__(self, servers: dict[str, McpServer], toolbox: ToolBox) -> None:
        self._servers = servers
        self._toolbox = toolbox
        self.connections: dict[str, McpConnection] = {}
        self._running: list[asyncio.Task[None]] = []
        for name in servers:
            # Before the worker runs: TOOLS may name what they are going to have.
            self.connections[name] = McpConnection(name, servers[name])
            toolbox.add_source(name, self.connections[name])

    async def start(self, house: WorkerServices) -> None:
        """Begin with all of them, and give them a moment."""
        house.heartbeat_fields[HEARTBEAT_FIELD] = self.readings
        links = list(self.connections.values())
        self._running = [asyncio.create_task(link.run()) for link in links]
        waiting = [asyncio.create_task(link.settled.wait()) for link in links]
        await asyncio.wait(waiting, timeout=START_S)
        for task in waiting:
            task.cancel()

    def readings(self) -> list[McpReading]:
        """What there is to say of each."""
        return [link.reading for link in self.connections.values()]

    async def close(self) -> None:
        """End them all at once; who does not end by himself is left to die with us."""
        for link in self.connections.values():
            await link.close()
        if self._running:
            _, rest = await asyncio.wait(self._running, timeout=CLOSE_S)
            for task in rest:
                task.cancel()
