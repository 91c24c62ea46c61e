"""What a gateway needs to know who may do what, and to write down what was done."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis
from starlette.requests import Request

from common import logs
from common.access import KeyStore
from common.contracts.access import AccessKeys, TrailAction
from common.queue import QueueStore
from common.store import JobStore
from common.trail import Deed, Trail
from gateway.callers import Callers, caller_of
from gateway.dashboard.sessions import Sessions
from gateway.quotas import Quotas


@dataclass(frozen=True)
class Access:
    """Keys, those who come with them, their quotas, the trail, and sessions at the dashboard."""

    keys: KeyStore
    callers: Callers
    quotas: Quotas
    trail: Trail
    sessions: Sessions

    @classmethod
    def over(
        cls, client: Redis, store: JobStore, queue: QueueStore, names: AccessKeys | None = None
    ) -> Access:
        """Wired together, on one Redis."""
        keys, sessions = KeyStore(client, names), Sessions(client, names)
        callers = Callers(keys, sessions=sessions)
        return cls(keys, callers, Quotas(store, queue), Trail(client, names), sessions)

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
