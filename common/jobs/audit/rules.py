"""What must hold of every job, judged from what was read of it. Nothing here asks Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from common import codec
from common.contracts import values_of
from common.contracts.jobs import TERMINAL, EventField, JobField, Status

_TYPE = EventField.TYPE.encode()
_JOB_ID, _STATUS = JobField.JOB_ID.encode(), JobField.STATUS.encode()
_FIELDS = frozenset(member.encode() for member in values_of(JobField))
_STATUSES = frozenset(member.value for member in Status)
#: What EXPIRE's counterpart says of a key that lives for ever.
_NO_EXPIRY = -1
#: Foreign text is shown no longer than this.
_SHOWN_CHARS = 60
_TYPES_SHOWN = 5


class Rule(str, Enum):
    """Promises that an audit can find broken."""

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


#: Of these, a job is lost: it has not ended, and nobody is going to end it.
LOST_JOB_RULES = frozenset({Rule.NOT_QUEUED, Rule.ACKED_WITHOUT_END})


class SuspectedViolation(NamedTuple):
    """A promise that seems broken; only a second look can tell."""

    rule: Rule
    detail: str


class QueueEntryState(NamedTuple):
    """How a job stands on the queue."""

    entries: int
    #: Whether one of them is still to be delivered, or delivered and not acknowledged.
    open: bool


@dataclass(slots=True)
class EventSummary:
    """What there is to know of a stream of events, without keeping it."""

    readable: bool = True
    terminals: int = 0
    terminal_types: list[str] = field(default_factory=list)
    last_terminal: str = ""
    last_id: str = ""
    last_type: str = ""

    def add(self, entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Take the next event into account."""
        self.last_id = entry_id.decode()
        self.last_type = codec.decode_text(fields.get(_TYPE, b""))
        if self.last_type in TERMINAL:
            self.terminals += 1
            self.last_terminal = self.last_type
            if len(self.terminal_types) < _TYPES_SHOWN:
                self.terminal_types.append(self.last_type)


class KeyTtls(NamedTuple):
    """Seconds that each key of a job has left, as TTL says it."""

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
        """Differs when the job has changed."""
        return self.status, self.updated_ts, self.events.last_id

    def is_recent(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it changed just now. A foreign clock may be ahead, but not by much."""
        return abs(now_ms - self.updated_ts) < grace_ms


class CheckContext(NamedTuple):
    """What is known of a job besides its own record."""

    now_ms: int
    grace_ms: int
    #: None where the queue has no entry of it.
    entry_state: QueueEntryState | None
    #: Whether the whole queue was seen; else a missing entry means nothing.
    queue_complete: bool
    is_scheduled: bool = False
    lease_deadline_ms: int = 0

    @property
    def is_queued(self) -> bool:
        """Whether the queue will see to the job."""
        return self.entry_state is not None and self.entry_state.open


def needs_owner_check(facts: JobSnapshot, around: CheckContext) -> bool:
    """Whether schedule and lease must be asked who is going to end this job."""
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
        yield SuspectedViolation(Rule.EVENTS_UNREADABLE, "its events key is no stream")
    elif status not in _STATUSES:
        return
    elif status not in TERMINAL:
        if events.terminals:
            detail = f"status is {status}, but there is a terminal event: {_types(events)}"
            yield SuspectedViolation(Rule.TERMINAL_EVENT_TOO_EARLY, detail)
    elif not events.terminals:
        # A foreign worker sets the status first, the event second. Should it die in between, the
        # next one to get its message writes the event.
        if not (around.is_queued and facts.is_recent(around.now_ms, around.grace_ms)):
            yield SuspectedViolation(
                Rule.NO_TERMINAL_EVENT, f"status is {status}, but no event says so"
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
        yield SuspectedViolation(
            Rule.NO_TTL, f"keys that would be kept for ever: {', '.join(endless)}"
        )


def _check_queue(facts: JobSnapshot, around: CheckContext) -> Iterator[SuspectedViolation]:
    standing = around.entry_state
    if standing is not None and standing.entries > 1:
        yield SuspectedViolation(Rule.QUEUED_TWICE, f"{standing.entries} entries on the queue")
    if (
        needs_owner_check(facts, around)
        and not around.is_scheduled
        and around.lease_deadline_ms <= around.now_ms
    ):
        what = f"status is {facts.status}, and nobody runs it"
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
    """Foreign text, fit for one line of a log."""
    return ascii(text[:_SHOWN_CHARS])
