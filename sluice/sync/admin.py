# Generated from sluice/aio/admin.py; edit that file.
"""Operations: statistics, queues, workers, dead letters, integrity checks and the audit log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from sluice.api import admin as api
from sluice.api.admin import (
    AuditLogEntry,
    AuditReport,
    DeadLetter,
    DeadLetterGroups,
    RedriveResult,
    Stats,
    Status,
    WhoAmI,
    Worker,
)
from sluice.api.jobs import Event
from sluice.sync.base import BaseClient
from sluice.transport.event_stream import EventStream, Notify
from sluice.transport.request import query_string


class AdminClient(BaseClient):
    """The methods for operators."""

    def stats(self, span: str | None = None, columns: Sequence[str] = ()) -> Stats:
        """Statistics over the last `10m`, `1h`, `6h`, `24h` or `14d`; all columns, or some."""
        return self.send(api.stats(span, columns))

    def live(
        self, only: Sequence[str] = (), *, say: Notify | None = None
    ) -> Generator[Event, None, None]:
        """Changes as they happen: `stats` each second, `jobs` that changed. Does not end by itself.

        `only` names the event types that are wanted. Lost connections are opened again.
        """
        path = api.LIVE + query_string({"only": ",".join(only) or None})
        return self.follow(EventStream(path, notify=say))

    def queues(self) -> dict[str, Any]:
        """The state of the job queue (`queues`) and of BullMQ's queues (`bullmq`)."""
        return self.send(api.queues())

    def pause(self, queue: str, why: str | None = None) -> dict[str, Any]:
        """Pause a queue: running jobs go on, new ones wait."""
        return self.send(api.pause(queue, why))

    def resume(self, queue: str) -> dict[str, Any]:
        """Resume a paused queue."""
        return self.send(api.resume(queue))

    def workers(self) -> list[Worker]:
        """The live workers with their last heartbeats."""
        return self.send(api.workers())

    def status(self) -> Status:
        """The health of all parts, also while the gateway is not ready."""
        return self.send(api.status())

    def whoami(self) -> WhoAmI:
        """The caller as the gateway sees it: name, scopes, tenant."""
        return self.send(api.whoami())

    def trail(self) -> Iterator[AuditLogEntry]:
        """The audit log: actions with administrative rights, newest first."""
        return self.paginate(lambda before: api.trail(None, before))

    def dead_letters(
        self, *, reason: str | None = None, fingerprint: str | None = None
    ) -> Iterator[DeadLetter]:
        """Dead letters, newest first."""
        return self.paginate(lambda before: api.dead_letters(reason, fingerprint, None, before))

    def dead_letter(self, letter_id: str) -> DeadLetter:
        """Read one dead letter."""
        return self.send(api.dead_letter(letter_id))

    def dead_letter_groups(self) -> DeadLetterGroups:
        """Dead letters by kind of failure, the largest group first."""
        return self.send(api.dead_letter_groups())

    def redrive(
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
        """Make new jobs of these dead letters, of those of a reason or a group, or of all."""
        request = api.redrive(
            ids,
            reason=reason,
            fingerprint=fingerprint,
            everything=everything,
            limit=limit,
            rate_per_s=rate_per_s,
            dry_run=dry_run,
        )
        return self.send(request)

    def redrive_one(self, letter_id: str) -> str:
        """Make a new job of one dead letter; returns its id, the same when repeated."""
        return self.send(api.redrive_one(letter_id))

    def purge(
        self,
        letter_id: str | None = None,
        *,
        reason: str | None = None,
        fingerprint: str | None = None,
        everything: bool = False,
    ) -> int:
        """Delete one dead letter, those of a reason or a group, or all; returns how many."""
        return self.send(
            api.purge(letter_id, reason=reason, fingerprint=fingerprint, everything=everything)
        )

    def last_audit(self) -> dict[str, Any]:
        """The outcome of the last integrity check, and totals of all of them."""
        return self.send(api.last_audit())

    def audit(self, tell: Callable[[dict[str, Any]], None] | None = None) -> AuditReport:
        """Check the integrity of all jobs now; `tell` gets each line, progress included."""
        parser = api.AuditParser()
        with self.transport.open(api.audit(), api.AUDIT_LINE_S) as response:
            for line in response.lines():
                parsed = parser.feed(line)
                if tell is not None:
                    tell(parsed)
        return parser.report()
