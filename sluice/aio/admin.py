"""The operator API: statistics, queues, workers, dead letters, integrity checks, audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from sluice.aio.base import AsyncBaseClient
from sluice.api import admin as api
from sluice.api.admin import (
    AuditLogEntry,
    AuditReport,
    DeadLetter,
    DeadLetterGroups,
    RedriveResult,
    Stats,
    Status,
    Tool,
    WhoAmI,
    Worker,
)
from sluice.api.jobs import Event
from sluice.transport.event_stream import EventStream, Notify
from sluice.transport.request import query_string


class AsyncAdminClient(AsyncBaseClient):
    """Client methods for operators."""

    async def stats(self, span: str | None = None, columns: Sequence[str] = ()) -> Stats:
        """Read statistics over the last `10m`, `1h`, `6h`, `24h` or `14d`; all columns, or some."""
        return await self.send(api.stats(span, columns))

    def live(
        self, only: Sequence[str] = (), *, notify: Notify | None = None
    ) -> AsyncGenerator[Event, None]:
        """Follow live updates: `stats` every second, and `jobs` that changed. Never ends.

        `only` selects event types. The stream reconnects automatically.
        """
        path = api.LIVE + query_string({"only": ",".join(only) or None})
        return self.follow(EventStream(path, notify=notify))

    async def queues(self) -> dict[str, Any]:
        """Read the state of the job queue (`queues`) and of the BullMQ queues (`bullmq`)."""
        return await self.send(api.queues())

    async def pause(self, queue: str, why: str | None = None) -> dict[str, Any]:
        """Pause a queue: running jobs continue, new ones wait."""
        return await self.send(api.pause(queue, why))

    async def resume(self, queue: str) -> dict[str, Any]:
        """Resume a paused queue."""
        return await self.send(api.resume(queue))

    async def workers(self) -> list[Worker]:
        """List the live workers with their last heartbeats."""
        return await self.send(api.workers())

    async def tools(self) -> list[Tool]:
        """List the tools that live workers offer, with the schemas of their arguments."""
        return await self.send(api.tools())

    async def status(self) -> Status:
        """Read the health status, also while the gateway is not ready."""
        return await self.send(api.status())

    async def whoami(self) -> WhoAmI:
        """Read the authenticated caller: name, scopes, tenant."""
        return await self.send(api.whoami())

    def trail(self) -> AsyncIterator[AuditLogEntry]:
        """Iterate over the audit log (actions with administrative rights), newest first."""
        return self.paginate(lambda before: api.trail(None, before))

    def dead_letters(
        self, *, reason: str | None = None, fingerprint: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Iterate over dead letters, newest first."""
        return self.paginate(lambda before: api.dead_letters(reason, fingerprint, None, before))

    async def dead_letter(self, dead_letter_id: str) -> DeadLetter:
        """Read one dead letter."""
        return await self.send(api.dead_letter(dead_letter_id))

    async def dead_letter_groups(self) -> DeadLetterGroups:
        """Group dead letters by failure signature, largest group first."""
        return await self.send(api.dead_letter_groups())

    async def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        reason: str | None = None,
        fingerprint: str | None = None,
        everything: bool = False,
        limit: int | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
    ) -> RedriveResult:
        """Re-enqueue dead letters: by id, by reason, by group, or all."""
        request = api.redrive(
            ids,
            reason=reason,
            fingerprint=fingerprint,
            everything=everything,
            limit=limit,
            rate_per_s=rate_per_s,
            dry_run=dry_run,
        )
        return await self.send(request)

    async def redrive_one(self, dead_letter_id: str) -> str:
        """Re-enqueue one dead letter; returns the new job's id, the same when repeated."""
        return await self.send(api.redrive_one(dead_letter_id))

    async def purge(
        self,
        dead_letter_id: str | None = None,
        *,
        reason: str | None = None,
        fingerprint: str | None = None,
        everything: bool = False,
    ) -> int:
        """Delete dead letters: one, by reason, by group, or all; returns their number."""
        return await self.send(
            api.purge(dead_letter_id, reason=reason, fingerprint=fingerprint, everything=everything)
        )

    async def last_audit(self) -> dict[str, Any]:
        """Read the result of the last integrity check and the totals of all checks."""
        return await self.send(api.last_audit())

    async def audit(self, on_line: Callable[[dict[str, Any]], None] | None = None) -> AuditReport:
        """Check the integrity of all jobs now; `on_line` receives each line, including progress."""
        parser = api.AuditParser()
        async with self.transport.open(api.audit(), api.AUDIT_LINE_S) as response:
            async for line in response.lines():
                parsed = parser.feed(line)
                if on_line is not None:
                    on_line(parsed)
        return parser.report()
