"""Checks of the run logs: concurrent handlers, and how soon jobs of killed workers continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaos.cluster import Kill
from chaos.history import Event, Record
from chaos.oracle import Violation, is_end_of_attempt
from chaos.orders import PLAIN
from chaos.run_log import HandlerRun
from sluice.common.contracts.jobs import EventType, Status


def check(
    runs: Iterable[HandlerRun], records: Mapping[str, Record], slots: int, limits: Mapping[str, int]
) -> Iterator[Violation]:
    """Yields a violation if a process ran more handlers at once than allowed, also per task."""
    runs = list(runs)
    by_process: dict[str, list[HandlerRun]] = {}
    # An attempt runs twice only if a failover lost the first start; which of the two ended is
    # unknown.
    times = Counter((run.job_id, run.attempt) for run in runs)
    for run in runs:
        twice = times[run.job_id, run.attempt] > 1 and run.task == PLAIN.value
        if not twice and _occupied_a_slot(run, records.get(run.job_id)):
            by_process.setdefault(run.process, []).append(run)
    for process, counted in by_process.items():
        if (most := max_concurrent(counted)) > slots:
            yield Violation("slots", process, f"{most} handlers at once, {slots} allowed")
        for task, limit in limits.items():
            of_task = [run for run in counted if run.task == task]
            if (most := max_concurrent(of_task)) > limit:
                yield Violation("slots", process, f"{most} {task} at once, {limit} allowed")


def max_concurrent(runs: Sequence[HandlerRun]) -> int:
    """Maximum number of concurrent runs."""
    changes = [(run.started_ns, 1) for run in runs]
    changes += [(run.ended_ns, -1) for run in runs if run.ended_ns is not None]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def _occupied_a_slot(run: HandlerRun, record: Record | None) -> bool:
    """True if the run certainly occupied a slot from start to end.

    A thread cannot be stopped. After its attempt was lost, canceled or timed out it runs on for a
    while, and its slot is used by another job.
    """
    if run.task != PLAIN.value:
        return True
    if record is None or run.ended_ns is None:
        return False
    end = _end_of(run, record)
    return end is not None and _is_own_end(end)


def _end_of(run: HandlerRun, record: Record) -> Event | None:
    """The event that ended the attempt of the run."""
    events = iter(record.events)
    for event in events:
        if event.type == EventType.RUNNING and event.attempt == run.attempt:
            break
    return next((event for event in events if is_end_of_attempt(event)), None)


def _is_own_end(end: Event) -> bool:
    if end.type == Status.ERROR.value:
        return not (isinstance(end.data, dict) and end.data.get("kind") == "timeout")
    return end.type in (Status.DONE.value, EventType.RETRY)


@dataclass(frozen=True)
class Recovery:
    """A job whose worker was killed, and the time until its next attempt started."""

    job_id: str
    process: str
    seconds: float
    #: True if no other fault was active.
    calm: bool


def recoveries(
    kills: Iterable[Kill], runs: Iterable[HandlerRun], records: Mapping[str, Record]
) -> list[Recovery]:
    """Time from each kill -9 to the next `running` event of each job that it interrupted."""
    found: list[Recovery] = []
    interrupted: dict[str, list[HandlerRun]] = {}
    for run in runs:
        if run.ended_ns is None:
            interrupted.setdefault(run.process, []).append(run)
    for kill in kills:
        for run in interrupted.get(kill.process, ()):
            record = records.get(run.job_id)
            restarted = record and _next_attempt(run, record)
            if restarted and restarted.ts >= kill.at_ms:
                seconds = (restarted.ts - kill.at_ms) / 1000
                found.append(Recovery(run.job_id, kill.process, seconds, kill.calm))
    return found


def _next_attempt(run: HandlerRun, record: Record) -> Event | None:
    running = record.of_type(EventType.RUNNING)
    return next((event for event in running if event.attempt == run.attempt + 1), None)
