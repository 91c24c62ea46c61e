"""What a gateway needs to know who may do what, and to write down what was done."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis
from starlette.requests import Request

from common import logs
from common.access import KeyStore
from common.contracts.access import TrailAction
from common.queue import QueueStore
from common.store import JobStore
from common.trail import Deed, Trail
from gateway.callers import Callers, caller_of
from gateway.quotas import Quotas


@dataclass(frozen=True)
class Access:
    """Keys, those who come with them, their quotas, and the trail."""

    keys: KeyStore
    callers: Callers
    quotas: Quotas
    trail: Trail

    @classmethod
    def over(cls, client: Redis, store: JobStore, queue: QueueStore) -> Access:
        """Wired together, on one Redis."""
        keys = KeyStore(client)
        return cls(keys, Callers(keys), Quotas(store, queue), Trail(client))

    async def write_down(self, request: Request, action: TrailAction, target: str = "") -> None:
        """Put on the trail what the request's caller is about to do, or refuse it."""
        caller = caller_of(request)
        client = request.client
        await self.trail.write(
            Deed(
                who=caller.who,
                action=action,
                target=target,
                name=caller.name if caller.key_id else "",
                request_id=logs.request_id.get(),
                remote="" if client is None else client.host,
            )
        )

    async def close(self) -> None:
        """Stop what is under way."""
        await self.callers.close()
