"""MCP servers as a service of the worker: started with it, kept going, ended with it."""

from __future__ import annotations

import asyncio
import logging

from worker.services import House, Service
from worker.signs import McpReading
from worker.tools.mcp_config import McpServer
from worker.tools.mcp_link import CLOSE_S, McpLink
from worker.tools.toolbox import ToolBox

log = logging.getLogger(__name__)

#: How long the worker waits for its servers before it takes jobs without them.
START_S = 10.0
#: Member of the worker's heartbeat that tells of them.
TELLING = "mcp"


class McpServers(Service):
    """One link a server; a broken one keeps neither the others nor the worker from working."""

    def __init__(self, servers: dict[str, McpServer], toolbox: ToolBox) -> None:
        self._servers = servers
        self._toolbox = toolbox
        self.links: dict[str, McpLink] = {}
        self._running: list[asyncio.Task[None]] = []
        for name in servers:
            # Before the worker runs: TOOLS may name what they are going to have.
            self.links[name] = McpLink(name, servers[name])
            toolbox.add_source(name, self.links[name])

    async def start(self, house: House) -> None:
        """Begin with all of them, and give them a moment."""
        house.telling[TELLING] = self.readings
        links = list(self.links.values())
        self._running = [asyncio.create_task(link.run()) for link in links]
        waiting = [asyncio.create_task(link.settled.wait()) for link in links]
        await asyncio.wait(waiting, timeout=START_S)
        for task in waiting:
            task.cancel()

    def readings(self) -> list[McpReading]:
        """What there is to say of each."""
        return [link.reading for link in self.links.values()]

    async def close(self) -> None:
        """End them all at once; who does not end by himself is left to die with us."""
        for link in self.links.values():
            await link.close()
        if self._running:
            _, rest = await asyncio.wait(self._running, timeout=CLOSE_S)
            for task in rest:
                task.cancel()
