"""MCP servers as a service of the worker."""

from __future__ import annotations

import asyncio
import logging

from sluice.common.observability.heartbeats import McpReading
from sluice.worker.features.tools.mcp.config import McpServer
from sluice.worker.features.tools.mcp.connection import CLOSE_S, McpConnection
from sluice.worker.features.tools.toolbox import ToolBox
from sluice.worker.registry import Service, WorkerServices

log = logging.getLogger(__name__)

#: How long the worker's start waits for its servers.
START_S = 10.0
#: Member of the worker's heartbeat with the states of the servers.
HEARTBEAT_FIELD = "mcp"


class McpServers(Service):
    """One connection per server. A broken server affects neither the others nor the worker."""

    def __init__(self, servers: dict[str, McpServer], toolbox: ToolBox) -> None:
        self._servers = servers
        self._toolbox = toolbox
        self.connections: dict[str, McpConnection] = {}
        self._running: list[asyncio.Task[None]] = []
        for name in servers:
            # Before the worker runs, so that TOOLS can name tools of the servers.
            self.connections[name] = McpConnection(name, servers[name])
            toolbox.add_source(name, self.connections[name])

    async def start(self, services: WorkerServices) -> None:
        """Start all connections and wait briefly for them."""
        services.heartbeat_fields[HEARTBEAT_FIELD] = self.readings
        connections = list(self.connections.values())
        self._running = [asyncio.create_task(connection.run()) for connection in connections]
        waiting = [asyncio.create_task(connection.settled.wait()) for connection in connections]
        await asyncio.wait(waiting, timeout=START_S)
        for task in waiting:
            task.cancel()

    def readings(self) -> list[McpReading]:
        """State of each server, for the heartbeat."""
        return [connection.reading for connection in self.connections.values()]

    async def close(self) -> None:
        """Close all connections concurrently.

        Servers that do not end in time end with the worker.
        """
        for connection in self.connections.values():
            await connection.close()
        if self._running:
            _, rest = await asyncio.wait(self._running, timeout=CLOSE_S)
            for task in rest:
                task.cancel()
