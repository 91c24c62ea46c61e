"""What the gateway says of dead letters, audits and what was done with administrative rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.core.raw import everything


@dataclass(frozen=True)
class DeadLetter:
    """A message that could not become a finished job."""

    id: str
    reason: str
    ts: int
    attempts: int
    job_id: str | None = None
    first_error: Any = None
    last_error: Any = None
    fields: Any = None
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class DeadLetterGroup:
    """Dead letters that failed alike."""

    fingerprint: str
    count: int
    reason: str
    task: str | None = None
    kind: str | None = None
    message: str | None = None
    newest_id: str = ""
    newest_ts: int = 0
    oldest_ts: int = 0
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class DeadLetterGroups:
    """All of them; `complete` is False where letters or small groups were left out."""

    groups: Sequence[DeadLetterGroup]
    total: int
    looked_at: int
    complete: bool


@dataclass(frozen=True)
class Redriven:
    """What came of a redrive: jobs made, and letters that were skipped with the code of why."""

    redriven: Sequence[Any]
    skipped: Sequence[Any]
    dry_run: bool = False
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Violation:
    """A promise about a job that was broken."""

    job_id: str
    rule: str
    detail: str = ""
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class AuditReport:
    """What an audit found; `violations` has the first thousand."""

    jobs_checked: int
    violations_total: int
    duration_ms: float
    complete: bool = True
    violations: Sequence[Violation] = ()
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class TrailEntry:
    """Something that was done with administrative rights."""

    id: str
    ts: int
    who: str
    name: str
    action: str
    target: str
    raw: Mapping[str, Any] = everything()
