"""Checks a history against all rules. It accesses neither Redis nor processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from chaos.handlers import PROGRESS
from chaos.history import Event, History, Record
from chaos.load import Posted
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import TERMINAL, EventType, JobField, Status

#: Tolerance: Redis and the harness read the same clock in whole milliseconds.
CLOCK_MS = 2
_FIELDS = frozenset(values_of(JobField))
_ATTEMPT_EVENTS = (PROGRESS, EventType.RETRY, EventType.RELEASED)
_ENDS_ATTEMPT = {EventType.RETRY, EventType.RELEASED, *TERMINAL}


class Violation(NamedTuple):
    """A rule that does not hold."""

    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.detail}"


Rule = Callable[[Posted, Record], Iterator[str]]


def check(history: History, *, lossy: bool = False) -> list[Violation]:
    """Returns all violations of a run.

    `lossy`: a master that died may have lost writes that were not waited for, such as events of a
    worker, even if a client has received them.
    """
    found: list[Violation] = []
    for posted in history.posted:
        subject = f"order {posted.order.number}"
        found += (Violation("answer", subject, fault) for fault in posted.faults)
        if not posted.accepted:
            found.append(Violation("accepted", subject, f"never: {dict(posted.answers)}"))
        elif len(posted.job_ids) > 1:
            found.append(Violation("one job a key", subject, f"{posted.job_ids}"))
    for posted in history.accepted:
        found += (
            violation
            for violation in check_job(posted, history.records[posted.job_id])
            if not (lossy and violation.rule in _NOT_IF_LOSSY)
        )
    found += _check_watchers(history, lossy)
    found += _check_leftovers(history)
    found += (Violation("process", "", complaint) for complaint in history.complaints)
    return found


def check_job(posted: Posted, record: Record) -> list[Violation]:
    """Returns all violations of one job."""
    subject = f"job {posted.job_id} ({posted.order.kind.value})"
    if not record.fields:
        return [Violation("lost", subject, "accepted, but not in Redis")]
    if record.status not in TERMINAL:
        last = ", ".join(event.type for event in record.events[-4:])
        return [Violation("stuck", subject, f"status {record.status} after … {last}")]
    return [
        Violation(name, subject, detail)
        for name, rule in _RULES.items()
        for detail in rule(posted, record)
    ]


# -- rules of a job ------------------------------------------------------------------------


def _terminal_event(posted: Posted, record: Record) -> Iterator[str]:
    ends = [event for event in record.events if event.terminal]
    if len(ends) != 1:
        yield f"{len(ends)} terminal events: {[(event.id, event.type) for event in ends]}"
    elif not record.events[-1].terminal:
        yield f"{record.events[-1].type} comes after {ends[0].type}"
    elif ends[0].type != record.status:
        yield f"the event is {ends[0].type}, the hash has {record.status}"


def _nine_fields(posted: Posted, record: Record) -> Iterator[str]:
    if record.fields.keys() != _FIELDS:
        yield f"{sorted(record.fields.keys() ^ _FIELDS)}"


def _as_ordered(posted: Posted, record: Record) -> Iterator[str]:
    order = posted.order
    if record.status not in order.may_end:
        yield f"ended {record.status} ({record.error_kind}), not {' or '.join(order.may_end)}"
    elif record.status == Status.ERROR.value and record.error_kind not in order.errors:
        yield f"failed with {record.error_kind}, not {' or '.join(order.errors)}"


def _queued_first(posted: Posted, record: Record) -> Iterator[str]:
    if not record.events or record.events[0].type != EventType.QUEUED:
        yield f"begins with {record.events[0].type if record.events else 'nothing'}"
    if len(record.of_type(EventType.QUEUED)) > 1:
        yield "queued twice"


def _attempts_count_up(posted: Posted, record: Record) -> Iterator[str]:
    attempts = [event.attempt for event in record.of_type(EventType.RUNNING)]
    if attempts != list(range(1, len(attempts) + 1)):
        yield f"attempts began as {attempts}"
    most = posted.order.max_attempts
    counted = len(attempts) - len(record.of_type(EventType.RELEASED))
    if most is not None and counted > most:
        yield f"{counted} attempts count, but {most} are allowed"


def _fenced(posted: Posted, record: Record) -> Iterator[str]:
    """Events of an attempt are between its start and its end."""
    current = 0
    for event in record.events:
        if event.type == EventType.RUNNING:
            current = event.attempt
        elif event.type in _ATTEMPT_EVENTS and event.attempt != current:
            yield f"{event.type} of attempt {event.attempt} during {current}: {event.id}"
        if event.type in _ENDS_ATTEMPT:
            current = 0


def _events_complete(posted: Posted, record: Record) -> Iterator[str]:
    """Events of an attempt have no gap and no duplicate; all exist if the attempt succeeded."""
    numbers: dict[int, list[int]] = {}
    for event in record.events:
        if event.type == PROGRESS:
            numbers.setdefault(event.attempt, []).append(event.data["number"])
    for attempt, found in numbers.items():
        if found != list(range(1, len(found) + 1)):
            yield f"attempt {attempt} wrote events {found}"
    if record.status == Status.DONE.value:
        last = len(record.of_type(EventType.RUNNING))
        if len(numbers.get(last, ())) != posted.order.events:
            yield f"{len(numbers.get(last, ()))} events of {posted.order.events}"


def _in_time_order(posted: Posted, record: Record) -> Iterator[str]:
    for earlier, later in pairwise(record.events):
        if later.ts < earlier.ts - CLOCK_MS:
            yield f"{later.type} at {later.ts} follows {earlier.type} at {earlier.ts}"


def _not_early(posted: Posted, record: Record) -> Iterator[str]:
    """Not before the scheduled time, and not before the end of a retry delay."""
    due = posted.first_sent_ms + posted.order.delay_s * 1000
    for event in record.events:
        if event.type == EventType.SCHEDULED:
            due = max(due, event.data["run_at_ms"])
        elif event.type == EventType.RETRY:
            due = event.ts + event.data["delay_ms"]
        elif event.type == EventType.RUNNING and event.ts < due - CLOCK_MS:
            yield f"attempt {event.attempt} began {due - event.ts:.0f} ms early"


def _canceled_as_asked(posted: Posted, record: Record) -> Iterator[str]:
    canceled = record.status == Status.CANCELED.value
    if canceled and not posted.cancel_sent_ms:
        yield "canceled without a request"
    if posted.cancel_answer in TERMINAL and posted.cancel_answer != record.status:
        yield f"the gateway answered {posted.cancel_answer}, but it ended {record.status}"


_COMPLETE = "events complete"
_NOT_IF_LOSSY = (_COMPLETE,)
_RULES: dict[str, Rule] = {
    "one terminal event, last, equal to the status": _terminal_event,
    "nine fields": _nine_fields,
    "ends as ordered": _as_ordered,
    "queued first": _queued_first,
    "attempts count up": _attempts_count_up,
    "fenced": _fenced,
    _COMPLETE: _events_complete,
    "times in order": _in_time_order,
    "not early": _not_early,
    "canceled as asked": _canceled_as_asked,
}


# -- rules of everything else ---------------------------------------------------------------


def _check_watchers(history: History, lossy: bool) -> Iterator[Violation]:
    for watched in history.watched:
        subject = f"watcher of job {watched.job_id}"
        stored = [event.id for event in history.records[watched.job_id].events]
        yield from (Violation("watched", subject, fault) for fault in watched.faults)
        if not watched.ended:
            yield Violation("watched", subject, f"did not receive the end; saw {watched.ids}")
        elif watched.ids != stored and not lossy:
            yield Violation("watched", subject, f"saw {watched.ids}, stored are {stored}")


def _check_leftovers(history: History) -> Iterator[Violation]:
    left = history.leftovers
    for name, count in (("pending", left.pending), ("unread", left.unread)):
        if count:
            yield Violation("queue empty", name, f"{count} messages")
    if left.scheduled:
        yield Violation("queue empty", "scheduled", f"{left.scheduled} jobs")
    yield from (Violation("every key has a TTL", key, "has none") for key in left.without_ttl)
    yield from (Violation("no lease stays", f"job {job_id}", "has one") for job_id in left.leases)
    for job_id in left.unknown_jobs:
        yield Violation("one job a key", f"job {job_id}", "exists, but no client knows it")
    for job_id, dead_letters_by_job in left.dead_letters_by_job.items():
        if dead_letters_by_job > 1:
            yield Violation("one dead letter a job", f"job {job_id}", f"has {dead_letters_by_job}")


def is_end_of_attempt(event: Event) -> bool:
    """True if the event ends the previous attempt."""
    return event.type in _ENDS_ATTEMPT or event.type == EventType.RUNNING
