"""The tools of live workers, merged from the lists that they publish."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.aio import wait_for
from sluice.common.contracts.jobs import JobKeys
from sluice.common.features.tools.listing import ListedTool, parse_tools
from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.gateway.http.problems import store_unavailable

#: Most different lists that are read; those of most workers.
MOST_LISTS = 32
#: Most tools in a response.
MOST_TOOLS = 1000
TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ServedTool:
    """A tool, and the names of the workers that offer it with this definition."""

    tool: ListedTool
    workers: tuple[str, ...]


class ToolCatalog:
    """Reads each list once; a list never changes, because its digest names it."""

    def __init__(self, client: Redis, keys: JobKeys) -> None:
        self._client = client
        self._keys = keys
        self._lists: dict[str, Sequence[ListedTool]] = {}

    async def served(self, workers: Sequence[Heartbeat]) -> list[ServedTool]:
        """The tools of these workers by name; raises a 503 if Redis does not answer."""
        consumers: dict[str, list[str]] = {}
        for beat in workers:
            if beat.tools is not None:
                consumers.setdefault(beat.tools.digest, []).append(beat.consumer)
        wanted = sorted(consumers, key=lambda digest: len(consumers[digest]), reverse=True)
        lists = await self._read(wanted[:MOST_LISTS])
        offered: dict[tuple[str, bytes], tuple[ListedTool, list[str]]] = {}
        for digest, tools in lists.items():  # once for all workers with the same tools
            for tool in tools:
                key = tool.name, codec.dumps_canonical(asdict(tool))
                offered.setdefault(key, (tool, []))[1].extend(consumers[digest])
        found = [
            ServedTool(tool, tuple(sorted(names))) for _, (tool, names) in sorted(offered.items())
        ]
        return found[:MOST_TOOLS]

    async def _read(self, digests: Sequence[str]) -> Mapping[str, Sequence[ListedTool]]:
        known = {digest: self._lists[digest] for digest in digests if digest in self._lists}
        missing = [digest for digest in digests if digest not in known]
        if missing:
            for digest, raw in zip(missing, await self._fetch(missing)):
                tools = parse_tools(raw)
                if tools is not None:  # else it is about to be written
                    known[digest] = tools
        self._lists = known
        return known

    async def _fetch(self, digests: Sequence[str]) -> list[bytes | None]:
        keys = [self._keys.tools(digest) for digest in digests]
        try:
            found: list[bytes | None] = await wait_for(TIMEOUT_S, self._client.mget(keys))
        except asyncio.TimeoutError:
            raise store_unavailable(f"no answer within {TIMEOUT_S:.0f} s") from None
        except (RedisError, *TRANSIENT_ERRORS) as error:
            raise store_unavailable(str(error)) from None
        return found
