"""Tells gateways which workflows there are."""

from __future__ import annotations

import logging
from typing import Any

from redis.asyncio import Redis

from common.contracts.jobs import TTL_MAX_S
from common.contracts.workflow import WorkflowKeys
from common.store import read
from worker.workflows.registry import Workflows

log = logging.getLogger(__name__)


class Definitions:
    """Writes the declarations of a worker's workflows where gateways read them."""

    def __init__(self, client: Redis, workflows: Workflows, keys: WorkflowKeys) -> None:
        self._client = client
        self._workflows = workflows
        self._keys = keys

    async def publish(self) -> None:
        """At the start: who starts last knows best. Jobs keep the declaration they began with."""
        ours = self._declared()
        if not ours:
            return
        key = self._keys.definitions
        reading: Any = self._client.hmget(key, list(ours))
        known = await read(reading) or [None] * len(ours)
        for (name, declared), other in zip(ours.items(), known):
            if other is not None and other != declared:
                log.warning(
                    "workflow %s was declared in another way before; new jobs go by this worker's "
                    "declaration. Give changed workflows a new name if older workers still run",
                    name,
                )
        pipe = self._client.pipeline()
        pipe.hset(key, mapping=dict(ours))
        pipe.expire(key, TTL_MAX_S)
        await read(pipe.execute())

    async def refresh(self) -> None:
        """Now and then: put back what is missing, and change nothing that somebody else wrote."""
        key = self._keys.definitions
        pipe = self._client.pipeline()
        for name, declared in self._declared().items():
            pipe.hsetnx(key, name, declared)  # type: ignore[arg-type]
        pipe.expire(key, TTL_MAX_S)
        await read(pipe.execute())

    def _declared(self) -> dict[str, bytes]:
        return {each.definition.name: each.definition.to_json() for each in self._workflows}
