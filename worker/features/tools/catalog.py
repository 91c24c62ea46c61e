"""Publishes the list of a worker's tools, for `GET /v1/tools`."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from redis.exceptions import RedisError

from sluice.common.contracts.workers import WorkerField
from sluice.common.features.tools.listing import TTL_S, ListedTool, digest_of, encode_tools
from sluice.common.observability.heartbeats import ToolsReading
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.worker.features.tools.toolbox import OfferedTool, ToolBox
from sluice.worker.registry import Service, WorkerServices

log = logging.getLogger(__name__)

#: Seconds after which an unchanged list is published again.
REFRESH_S: Final = TTL_S / 4


class ToolCatalog(Service):
    """Writes the list under its digest, which the heartbeat contains.

    Workers with the same tools share a key. The tools of MCP servers change at any time.
    """

    def __init__(self, toolbox: ToolBox) -> None:
        self._toolbox = toolbox
        self._offered: list[OfferedTool] | None = None
        self._raw = b""
        self._reading = ToolsReading("")
        self._changed = asyncio.Event()

    async def start(self, services: WorkerServices) -> None:
        """Add the list to the heartbeat. It is written in `run`, after all tools are known."""
        self._redis, self._keys = services.redis, services.keys
        services.heartbeat_fields[WorkerField.TOOLS] = self.reading

    def reading(self) -> ToolsReading:
        """Digest of the current list."""
        offered = self._toolbox.offered()
        if offered != self._offered:
            self._offered = offered
            self._raw = encode_tools(map(_listed, offered))
            self._reading = ToolsReading(digest_of(self._raw), len(offered))
            self._changed.set()
        return self._reading

    async def run(self) -> None:
        """Write the list when it changes, and before it expires, until canceled."""
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.debug("list of tools not published: %s", error)
            try:
                await asyncio.wait_for(self._changed.wait(), REFRESH_S)
            except asyncio.TimeoutError:
                continue

    async def publish(self) -> None:
        """Write the list, or extend its life. Raises errors of Redis."""
        key = self._keys.tools(self.reading().digest)
        if not await self._redis.expire(key, TTL_S):
            await self._redis.set(key, self._raw, ex=TTL_S)


def _listed(offered: OfferedTool) -> ListedTool:
    tool = offered.tool
    return ListedTool(tool.name, tool.description, tool.parameters, offered.origin, offered.server)
