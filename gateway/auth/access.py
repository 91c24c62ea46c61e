"""Access control of the gateway: quotas, and the bundle of stores behind authentication."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.asyncio import Redis
from starlette.requests import Request

from sluice.common.access.audit_log import AuditEntry, AuditLog
from sluice.common.access.store import KeyStore
from sluice.common.contracts.access import AccessKeys, AuditAction
from sluice.common.errors import QuotaExceeded
from sluice.common.jobs.protocols import JobStoreProtocol, QueueProtocol
from sluice.common.jobs.store import AcceptedJob, NewJob
from sluice.common.observability import logs
from sluice.gateway.auth.callers import Callers, caller_of
from sluice.gateway.auth.read_tokens import ReadTokens
from sluice.gateway.dashboard.sessions import SessionStore

#: Seconds before the quota of a key is recounted after a recount that found no finished jobs.
SETTLE_EVERY_S = 0.2
MAX_CACHED_KEYS = 4096


class Quotas:
    """Recounts the active jobs of a key before its quota rejects a job.

    The counted set may still hold jobs that have finished; the recount removes them.
    """

    def __init__(
        self,
        store: JobStoreProtocol,
        queue: QueueProtocol,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._recounts: dict[str, asyncio.Task[int]] = {}
        self._last_failed_at: dict[str, float] = {}

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> AcceptedJob:
        """Enqueue a job of a key with limits; raises what `JobStoreProtocol.enqueue` raises."""
        try:
            return await self._store.enqueue(job, group, backlog_limit)
        except QuotaExceeded:
            if job.limits is None or not await self.prune_quota(job.limits.active_key):
                raise
        return await self._store.enqueue(job, group, backlog_limit)

    async def prune_quota(self, active_key: str) -> int:
        """Remove finished jobs from a key's active set and return their number.

        Concurrent calls for one key share one recount.
        """
        task = self._recounts.get(active_key)
        if task is None:
            if (
                self._clock() - self._last_failed_at.get(active_key, -SETTLE_EVERY_S)
                < SETTLE_EVERY_S
            ):
                return 0
            task = asyncio.create_task(self._recount(active_key))
            self._recounts[active_key] = task
        return await asyncio.shield(task)

    async def _recount(self, active_key: str) -> int:
        try:
            pruned = await self._queue.prune_quota(active_key)
        finally:
            del self._recounts[active_key]
        if not pruned:
            if len(self._last_failed_at) > MAX_CACHED_KEYS:
                self._last_failed_at.clear()
            self._last_failed_at[active_key] = self._clock()
        return pruned


@dataclass(frozen=True)
class Access:
    """API keys, callers, quotas, the audit log, dashboard sessions and read tokens."""

    keys: KeyStore
    callers: Callers
    quotas: Quotas
    audit_log: AuditLog
    sessions: SessionStore
    read_tokens: ReadTokens

    @classmethod
    def over(
        cls,
        client: Redis,
        store: JobStoreProtocol,
        queue: QueueProtocol,
        names: AccessKeys | None = None,
    ) -> Access:
        keys, sessions = KeyStore(client, names), SessionStore(client, names)
        callers = Callers(keys, sessions=sessions)
        return cls(
            keys=keys,
            callers=callers,
            quotas=Quotas(store, queue),
            audit_log=AuditLog(client, names),
            sessions=sessions,
            read_tokens=ReadTokens(keys),
        )

    async def record(self, request: Request, action: AuditAction, target: str = "") -> None:
        """Write an audit log entry for an action before it happens; raises if that fails."""
        caller = caller_of(request)
        client = request.client
        await self.audit_log.write(
            AuditEntry(
                who=caller.who,
                action=action,
                target=target,
                name=caller.name if caller.key_id else "",
                request_id=logs.request_id.get(),
                remote="" if client is None else client.host,
            )
        )

    async def close(self) -> None:
        await self.callers.close()
        await self.read_tokens.close()
