"""The available workflows: the built-in one, and those that workers define."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.features.workflows import memory_first
from sluice.common.features.workflows.definitions import WorkflowDefinition
from sluice.common.jobs.store import read_reply

log = logging.getLogger(__name__)

#: Seconds that definitions from Redis are cached.
CACHE_TTL_S = 5.0
#: Shortest time between two lookups of unknown names, in seconds.
MIN_REFRESH_S = 0.5
#: Longer definitions are rejected.
MOST_BYTES = 256 * 1024
#: Workflow names listed in an error response.
MOST_NAMED = 50


class WorkflowCatalog:
    """Workflow definitions by name."""

    def __init__(
        self,
        client: Redis,
        keys: WorkflowKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._keys = keys or WorkflowKeys()
        self._clock = clock
        self._known: Mapping[str, WorkflowDefinition] = _BUILTIN
        self._raw: dict[str, bytes] = {}
        self._refreshed_at = float("-inf")

    async def find(self, name: str) -> WorkflowDefinition | None:
        """The workflow of that name; reads Redis if it is unknown or the cache has expired."""
        age_s = self._clock() - self._refreshed_at
        if age_s >= CACHE_TTL_S or (name not in self._known and age_s >= MIN_REFRESH_S):
            try:
                await self._refresh()
            except StoreUnavailable:
                if name not in self._known:
                    raise
        return self._known.get(name)

    async def all(self) -> list[WorkflowDefinition]:
        """All workflows by name; from the cache if Redis is unavailable."""
        if self._clock() - self._refreshed_at >= MIN_REFRESH_S:
            try:
                await self._refresh()
            except StoreUnavailable:
                log.debug("Redis is unavailable; listing cached workflows")
        return [self._known[name] for name in sorted(self._known)]

    def names(self) -> list[str]:
        """The names as of the last refresh."""
        return sorted(self._known)[:MOST_NAMED]

    async def _refresh(self) -> None:
        command: Any = self._client.hgetall(self._keys.definitions)
        stored = await read_reply(command) or {}
        self._refreshed_at = self._clock()
        raw = {codec.decode_text(name): value for name, value in stored.items()}
        if raw == self._raw:
            return
        parsed = {name: _definition(name, value) for name, value in raw.items()}
        found = {name: each for name, each in parsed.items() if each is not None}
        self._known, self._raw = {**found, **_BUILTIN}, raw


def _definition(name: str, raw: bytes) -> WorkflowDefinition | None:
    try:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has {len(raw)} bytes")
        definition = WorkflowDefinition.from_json(raw)
        if definition.name != name:
            raise ValueError(f"its name is {definition.name!r}")
    except ValueError as error:
        log.warning("workflow %r: ignoring its invalid definition: %s", name, error)
        return None
    return definition


_BUILTIN: Mapping[str, WorkflowDefinition] = {memory_first.DEFINITION.name: memory_first.DEFINITION}
