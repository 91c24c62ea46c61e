"""The guarantees that hold for every job, checked on data that was read before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import TERMINAL, EventField, JobField, Status

_TYPE = EventField.TYPE.encode()
_JOB_ID, _STATUS = JobField.JOB_ID.encode(), JobField.STATUS.encode()
_FIELDS = frozenset(member.encode() for member in values_of(JobField))
_STATUSES = frozenset(member.value for member in Status)
#: Reply of TTL for a key without an expiry.
_NO_EXPIRY = -1
#: Characters shown of text from Redis, which may come from any writer.
_SHOWN_CHARS = 60
_TYPES_SHOWN = 5


class Rule(str, Enum):
    """Guarantees that the integrity check verifies."""

    NO_TERMINAL_EVENT = "no_terminal_event"
    SEVERAL_TERMINAL_EVENTS = "several_terminal_events"
    TERMINAL_EVENT_NOT_LAST = "terminal_event_not_last"
    TERMINAL_EVENT_DIFFERS = "terminal_event_differs"
    TERMINAL_EVENT_TOO_EARLY = "terminal_event_too_early"
    EVENTS_UNREADABLE = "events_unreadable"
    WRONG_FIELDS = "wrong_fields"
    NO_TTL = "no_ttl"
    NOT_QUEUED = "not_queued"
    ACKED_WITHOUT_END = "acked_without_end"
    QUEUED_TWICE = "queued_twice"


#: A violation of these means a lost job: it has not ended, and no worker will end it.
LOST_JOB_RULES = frozenset({Rule.NOT_QUEUED, Rule.ACKED_WITHOUT_END})


class SuspectedViolation(NamedTuple):
    """A guarantee that seems violated; a second check decides."""

    rule: Rule
    detail: str


class QueueEntryState(NamedTuple):
    """The entries of a job on the queue."""

    entries: int
    #: Whether one of them is undelivered, or delivered and not acknowledged.
    open: bool


@dataclass(slots=True)
class EventSummary:
    """The facts needed from an events stream."""

    readable: bool = True
    terminals: int = 0
    terminal_types: list[str] = field(default_factory=list)
    last_terminal: str = ""
    last_id: str = ""
    last_type: str = ""

    def add(self, entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Add the next event."""
        self.last_id = entry_id.decode()
        self.last_type = codec.decode_text(fields.get(_TYPE, b""))
        if self.last_type in TERMINAL:
            self.terminals += 1
            self.last_terminal = self.last_type
            if len(self.terminal_types) < _TYPES_SHOWN:
                self.terminal_types.append(self.last_type)


class KeyTtls(NamedTuple):
    """Remaining lifetime of each key of a job in seconds, as TTL reports it."""

    job: int
    events: int
    lease: int


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """One job as it was read."""

    job_id: str
    fields: frozenset[bytes]
    job_id_field: str
    status: str
    updated_ts: int
    ttls: KeyTtls
    events: EventSummary

    @property
    def mark(self) -> tuple[str, int, str]:
        """Differs if the job has changed."""
        return self.status, self.updated_ts, self.events.last_id

    def is_recent(self, now_ms: int, grace_ms: int) -> bool:
        """True if it changed just now. A third-party clock may be ahead, but not by much."""
        return abs(now_ms - self.updated_ts) < grace_ms


class CheckContext(NamedTuple):
    """Information about a job that is not in its hash."""

    now_ms: int
    grace_ms: int
    #: None if the queue has no entry of the job.
    entry_state: QueueEntryState | None
    #: Whether the whole queue was read; otherwise a missing entry proves nothing.
    queue_complete: bool
    is_scheduled: bool = False
    lease_deadline_ms: int = 0

    @property
    def is_queued(self) -> bool:
        """True if a worker will get, or has, a message of the job."""
        return self.entry_state is not None and self.entry_state.open


def needs_owner_check(facts: JobSnapshot, around: CheckContext) -> bool:
    """True if schedule and lease must be read to find out whether the job will end."""
    unfinished = facts.status in _STATUSES and facts.status not in TERMINAL
    young = facts.is_recent(around.now_ms, around.grace_ms)
    return unfinished and not young and not around.is_queued


def find_violations(facts: JobSnapshot, around: CheckContext) -> list[SuspectedViolation]:
    return [
        *_check_fields(facts),
        *_check_events(facts, around),
        *_check_keys(facts),
        *_check_queue(facts, around),
    ]


def _check_fields(facts: JobSnapshot) -> Iterator[SuspectedViolation]:
    faults = []
    extra = facts.fields - _FIELDS
    if len(facts.fields) > len(_FIELDS):  # then not all of them were read
        faults.append(f"has more than {len(_FIELDS)} fields, such as {_names(extra)}")
    elif facts.fields != _FIELDS:
        lacking = _FIELDS - facts.fields
        instead = f", but has {_names(extra)}" if extra else ""
        faults.append(f"lacks {_names(lacking)}{instead}")
    if facts.status not in _STATUSES and (facts.status or _STATUS in facts.fields):
        faults.append(f"{JobField.STATUS} is {_shown(facts.status)}")
    if facts.job_id_field != facts.job_id and (facts.job_id_field or _JOB_ID in facts.fields):
        faults.append(f"{JobField.JOB_ID} is {_shown(facts.job_id_field)}")
    if faults:
        yield SuspectedViolation(Rule.WRONG_FIELDS, f"the record: {'; '.join(faults)}")


def _check_events(facts: JobSnapshot, around: CheckContext) -> Iterator[SuspectedViolation]:
    events, status = facts.events, facts.status
    if not events.readable:
        yield SuspectedViolation(Rule.EVENTS_UNREADABLE, "its events key is not a stream")
    elif status not in _STATUSES:
        return
    elif status not in TERMINAL:
        if events.terminals:
            detail = f"status is {status}, but there is a terminal event: {_types(events)}"
            yield SuspectedViolation(Rule.TERMINAL_EVENT_TOO_EARLY, detail)
    elif not events.terminals:
        # A third-party worker sets the status first and adds the event second. If it dies in
        # between, the next worker that gets its message adds the event.
        if not (around.is_queued and facts.is_recent(around.now_ms, around.grace_ms)):
            yield SuspectedViolation(
                Rule.NO_TERMINAL_EVENT, f"status is {status}, but there is no terminal event"
            )
    else:
        if events.terminals > 1:
            detail = f"{events.terminals} terminal events: {_types(events)}"
            yield SuspectedViolation(Rule.SEVERAL_TERMINAL_EVENTS, detail)
        if events.last_type not in TERMINAL:
            detail = f"{_shown(events.last_type)} comes after it"
            yield SuspectedViolation(Rule.TERMINAL_EVENT_NOT_LAST, detail)
        if events.last_terminal != status:
            detail = f"status is {status}, its terminal event {events.last_terminal}"
            yield SuspectedViolation(Rule.TERMINAL_EVENT_DIFFERS, detail)


def _check_keys(facts: JobSnapshot) -> Iterator[SuspectedViolation]:
    endless = [name for name, left_s in facts.ttls._asdict().items() if left_s == _NO_EXPIRY]
    if endless:
        yield SuspectedViolation(Rule.NO_TTL, f"keys without an expiry: {', '.join(endless)}")


def _check_queue(facts: JobSnapshot, around: CheckContext) -> Iterator[SuspectedViolation]:
    standing = around.entry_state
    if standing is not None and standing.entries > 1:
        yield SuspectedViolation(Rule.QUEUED_TWICE, f"{standing.entries} entries on the queue")
    if (
        needs_owner_check(facts, around)
        and not around.is_scheduled
        and around.lease_deadline_ms <= around.now_ms
    ):
        what = f"status is {facts.status}, but no worker runs it"
        if standing is not None:
            yield SuspectedViolation(Rule.ACKED_WITHOUT_END, f"{what}: its message is acknowledged")
        elif around.queue_complete:
            yield SuspectedViolation(
                Rule.NOT_QUEUED, f"{what}: it is on no queue and not scheduled"
            )


def _types(events: EventSummary) -> str:
    more = events.terminals - len(events.terminal_types)
    return ", ".join(events.terminal_types) + (f" and {more} more" if more else "")


def _names(names: frozenset[bytes]) -> str:
    return ", ".join(sorted(_shown(codec.decode_text(name)) for name in names))


def _shown(text: str) -> str:
    """Untrusted text, escaped and cut for one line of a log."""
    return ascii(text[:_SHOWN_CHARS])
