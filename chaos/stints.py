"""What the diaries tell: how many ran at once, and how soon a dead worker's jobs went on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaos.cluster import Kill
from chaos.diary import Stint
from chaos.history import Event, Record
from chaos.oracle import Violation, is_end_of_attempt
from chaos.orders import PLAIN
from common.contracts.jobs import EventType, Status


def check(
    stints: Iterable[Stint], records: Mapping[str, Record], places: int, limits: Mapping[str, int]
) -> Iterator[Violation]:
    """Places taken at once, in every process: all together, and by task."""
    stints = list(stints)
    by_process: dict[str, list[Stint]] = {}
    # Only a failover that lost the first makes two of one attempt; whose end is told is unknown.
    times = Counter((stint.job_id, stint.attempt) for stint in stints)
    for stint in stints:
        twice = times[stint.job_id, stint.attempt] > 1 and stint.task == PLAIN.value
        if not twice and _held_its_place(stint, records.get(stint.job_id)):
            by_process.setdefault(stint.process, []).append(stint)
    for process, held in by_process.items():
        if (most := most_at_once(held)) > places:
            yield Violation("places", process, f"{most} handlers at once, {places} allowed")
        for task, limit in limits.items():
            of_task = [stint for stint in held if stint.task == task]
            if (most := most_at_once(of_task)) > limit:
                yield Violation("places", process, f"{most} {task} at once, {limit} allowed")


def most_at_once(stints: Sequence[Stint]) -> int:
    """How many ran at the same time at most."""
    changes = [(stint.began_ns, 1) for stint in stints]
    changes += [(stint.ended_ns, -1) for stint in stints if stint.ended_ns is not None]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def _held_its_place(stint: Stint, record: Record | None) -> bool:
    """Whether it certainly held a place from beginning to end.

    A thread cannot be stopped: one whose attempt was lost, canceled or out of time runs on for a
    while, and its place has gone to another by then.
    """
    if stint.task != PLAIN.value:
        return True
    if record is None or stint.ended_ns is None:
        return False
    end = _end_of(stint, record)
    return end is not None and _is_own_end(end)


def _end_of(stint: Stint, record: Record) -> Event | None:
    """The event that ended the stint's attempt."""
    events = iter(record.events)
    for event in events:
        if event.type == EventType.RUNNING and event.attempt == stint.attempt:
            break
    return next((event for event in events if is_end_of_attempt(event)), None)


def _is_own_end(end: Event) -> bool:
    if end.type == Status.ERROR.value:
        return not (isinstance(end.data, dict) and end.data.get("kind") == "timeout")
    return end.type in (Status.DONE.value, EventType.RETRY)


@dataclass(frozen=True)
class Recovery:
    """A job whose worker was killed, and how long it took until its next attempt began."""

    job_id: str
    process: str
    seconds: float
    #: Whether nothing else was wrong meanwhile.
    calm: bool


def recoveries(
    kills: Iterable[Kill], stints: Iterable[Stint], records: Mapping[str, Record]
) -> list[Recovery]:
    """From each kill -9 to the next `running` of every job that was cut short by it."""
    found: list[Recovery] = []
    cut_short: dict[str, list[Stint]] = {}
    for stint in stints:
        if stint.ended_ns is None:
            cut_short.setdefault(stint.process, []).append(stint)
    for kill in kills:
        for stint in cut_short.get(kill.process, ()):
            record = records.get(stint.job_id)
            again = record and _next_attempt(stint, record)
            if again and again.ts >= kill.at_ms:
                seconds = (again.ts - kill.at_ms) / 1000
                found.append(Recovery(stint.job_id, kill.process, seconds, kill.calm))
    return found


def _next_attempt(stint: Stint, record: Record) -> Event | None:
    running = record.of_type(EventType.RUNNING)
    return next((event for event in running if event.attempt == stint.attempt + 1), None)
