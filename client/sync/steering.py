"""What an operator asks: numbers, queues, workers, dead letters, audits, the trail."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from client.core import steering_api as api
from client.core.calls import query_text
from client.core.following import Following, Say
from client.core.models import Event, Stats, Status, WhoAmI, Worker
from client.core.steering_models import (
    AuditReport,
    DeadLetter,
    DeadLetterGroups,
    Redriven,
    TrailEntry,
)
from client.sync.asking import Asking


class Steering(Asking):
    """The machine as a whole."""

    def stats(self, span: str | None = None, columns: Sequence[str] = ()) -> Stats:
        """Numbers over the last `10m`, `1h`, `6h`, `24h` or `14d`; all columns, or some."""
        return self.run(api.stats(span, columns))

    def live(
        self, only: Sequence[str] = (), *, say: Say | None = None
    ) -> Generator[Event, None, None]:
        """What changes, as it does: `stats` each second, `jobs` that got on; never ends by itself.

        `only` names the types that are wanted. Goes on by itself through lost connections.
        """
        path = api.LIVE + query_text({"only": ",".join(only) or None})
        return self.follow(Following(path, say=say))

    def queues(self) -> dict[str, Any]:
        """How the job queue is (`queues`), and how BullMQ's are (`bullmq`)."""
        return self.run(api.queues())

    def pause(self, queue: str, why: str | None = None) -> dict[str, Any]:
        """Workers take nothing new from it; what runs goes on, what comes waits."""
        return self.run(api.pause(queue, why))

    def resume(self, queue: str) -> dict[str, Any]:
        """They take jobs again."""
        return self.run(api.resume(queue))

    def workers(self) -> list[Worker]:
        """All who live, with their last word."""
        return self.run(api.workers())

    def status(self) -> Status:
        """How all parts are, also where the gateway is not well."""
        return self.run(api.status())

    def whoami(self) -> WhoAmI:
        """Whom the gateway takes us for, and what we may do."""
        return self.run(api.whoami())

    def trail(self) -> Iterator[TrailEntry]:
        """What was done with administrative rights, newest first."""
        return self.pages(lambda before: api.trail(None, before))

    def dead_letters(
        self, *, reason: str | None = None, fingerprint: str | None = None
    ) -> Iterator[DeadLetter]:
        """Messages that came to nothing, newest first."""
        return self.pages(lambda before: api.dead_letters(reason, fingerprint, None, before))

    def dead_letter(self, letter_id: str) -> DeadLetter:
        """One of them."""
        return self.run(api.dead_letter(letter_id))

    def dead_letter_groups(self) -> DeadLetterGroups:
        """By how they failed, the largest group first."""
        return self.run(api.dead_letter_groups())

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
    ) -> Redriven:
        """Make jobs of them again: of these, of a reason's, of a group's, or of all."""
        asked = api.redrive(
            ids,
            reason=reason,
            fingerprint=fingerprint,
            everything=everything,
            limit=limit,
            rate_per_s=rate_per_s,
            dry_run=dry_run,
        )
        return self.run(asked)

    def redrive_one(self, letter_id: str) -> str:
        """Make a job of one; its id, the same when it is repeated."""
        return self.run(api.redrive_one(letter_id))

    def purge(
        self,
        letter_id: str | None = None,
        *,
        reason: str | None = None,
        fingerprint: str | None = None,
        everything: bool = False,
    ) -> int:
        """Delete one, a reason's, a group's, or all; returns how many."""
        return self.run(
            api.purge(letter_id, reason=reason, fingerprint=fingerprint, everything=everything)
        )

    def last_audit(self) -> dict[str, Any]:
        """What the last audit found, and all of them together."""
        return self.run(api.last_audit())

    def audit(self, tell: Callable[[dict[str, Any]], None] | None = None) -> AuditReport:
        """Have all jobs checked now; `tell` gets each line as it comes, progress too."""
        lines = api.AuditLines()
        with self.transport.open(api.audit(), api.AUDIT_LINE_S) as opened:
            for line in opened.lines():
                told = lines.take(line)
                if tell is not None:
                    tell(told)
        return lines.ended()
