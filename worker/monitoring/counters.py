"""Counters and histograms of this process. Counting a job costs about a microsecond.

The worker's heartbeat carries them; gateways export them under `/metrics`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sluice.common.contracts.jobs import TTL_MAX_S
from sluice.common.contracts.workers import (
    HISTOGRAM_BOUNDS,
    SECONDS_BOUNDS,
    TASK_LABELS,
    UNKNOWN_TASK,
    TaskCounter,
    TaskHistogram,
)
from sluice.common.observability.heartbeats import Histogram as HistogramReading
from sluice.common.observability.heartbeats import TaskNumbers
from sluice.common.observability.histogram import Histogram
from sluice.worker.execution.outcome import Outcome

# An enum lookup or a method call costs as much as counting itself. So the methods that run for
# every job use these names, and increment histograms in place.
_DONE, _RETRY, _CANCELED = Outcome.DONE, Outcome.RETRY, Outcome.CANCELED
_POSTPONED = Outcome.POSTPONED
_HISTOGRAMS = tuple(spread.value for spread in TaskHistogram)


class TaskCounters:
    """The counters of one task."""

    __slots__ = (
        "attempts",
        "canceled",
        "deadlettered",
        "end_to_end",
        "expired",
        "failed",
        "first_attempt",
        "postponed",
        "queue_wait",
        "reclaimed",
        "released",
        "retried",
        "run",
        "started",
        "succeeded",
    )

    def __init__(self) -> None:
        self.started = self.succeeded = self.failed = self.canceled = 0
        self.expired = self.retried = self.deadlettered = self.released = self.reclaimed = 0
        self.postponed = 0
        #: Jobs that ended at their first attempt, as most do: cheaper to count than with the
        #: histogram, to which `view` adds them.
        self.first_attempt = 0
        self.queue_wait = Histogram(HISTOGRAM_BOUNDS[TaskHistogram.QUEUE_WAIT])
        self.run = Histogram(HISTOGRAM_BOUNDS[TaskHistogram.RUN])
        self.end_to_end = Histogram(HISTOGRAM_BOUNDS[TaskHistogram.END_TO_END])
        self.attempts = Histogram(HISTOGRAM_BOUNDS[TaskHistogram.ATTEMPTS])

    def view(self) -> dict[str, object]:
        """As a JSON object, without empty histograms."""
        self.attempts.counts[0] += self.first_attempt
        self.attempts.sum += self.first_attempt
        self.first_attempt = 0
        found: dict[str, object] = {
            count.value: getattr(self, count.value) for count in TaskCounter
        }
        for spread in TaskHistogram:
            histogram: Histogram = getattr(self, spread.value)
            if any(histogram.counts):
                found[spread.value] = histogram.view()
        return found


class Counters:
    """The counters of this process, by task. Tasks outside the contract are counted as one."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tasks = {task: TaskCounters() for task in TASK_LABELS}
        self._unknown = self._tasks[UNKNOWN_TASK]

    def for_task(self, task: str) -> TaskCounters:
        return self._tasks.get(task, self._unknown)

    def total(self, count: TaskCounter) -> int:
        """The sum of a counter over all tasks."""
        return sum(getattr(counters, count.value) for counters in self._tasks.values())

    def record_start(self, task: str, message_id: str, attempt: int) -> float:
        """Count the start of an attempt; returns the Unix time at which its message was queued, or
        0 if unknown.

        Only a first attempt counts for the waiting time. A delayed job enters the queue when it is
        due, so the delay is not part of it.
        """
        counters = self._tasks.get(task, self._unknown)
        counters.started += 1
        try:
            queued_s = int(message_id.partition("-")[0]) / 1000
        except ValueError:
            return 0.0
        age_s = self._clock() - queued_s
        if age_s > TTL_MAX_S:  # a third-party producer chose the message id
            return 0.0
        if attempt == 1:
            if age_s < 0.0:  # the clock of Redis may be slightly ahead
                age_s = 0.0
            wait = counters.queue_wait
            wait.counts[bisect_left(SECONDS_BOUNDS, age_s)] += 1
            wait.sum += age_s
        return queued_s

    def record_end(
        self,
        outcome: Outcome,
        task: str,
        queued_s: float,
        attempt: int,
        ran_s: float,
        dead: bool = False,
    ) -> None:
        """Count the end of an attempt whose report was stored."""
        counters = self._tasks.get(task, self._unknown)
        run = counters.run
        run.counts[bisect_left(SECONDS_BOUNDS, ran_s)] += 1
        run.sum += ran_s
        if outcome is _DONE:
            counters.succeeded += 1
        elif outcome is _RETRY:
            counters.retried += 1
            return
        elif outcome is _POSTPONED:
            counters.postponed += 1
            return
        elif outcome is _CANCELED:
            counters.canceled += 1
        else:
            counters.failed += 1
            counters.deadlettered += dead
        if attempt == 1:
            counters.first_attempt += 1
        else:
            counters.attempts.observe(attempt)
        if queued_s:
            age_s = self._clock() - queued_s
            if age_s < 0.0:
                age_s = 0.0
            whole = counters.end_to_end
            whole.counts[bisect_left(SECONDS_BOUNDS, age_s)] += 1
            whole.sum += age_s

    def record_exhausted(self, task: str, attempts: int) -> None:
        """Count a job that was dead-lettered because its attempts are exhausted."""
        counters = self.for_task(task)
        counters.failed += 1
        counters.deadlettered += 1
        counters.attempts.observe(attempts)

    def record_dead_letter(self, task: str, *, expired: bool) -> None:
        """Count a dead-lettered message; `expired` if its job had expired."""
        counters = self.for_task(task)
        counters.deadlettered += 1
        if expired:
            counters.expired += 1

    def record_reclaimed(self, tasks: Iterable[str]) -> None:
        """Count messages that were taken over because their lease had expired."""
        for task in tasks:
            self.for_task(task).reclaimed += 1

    def view(self, handled: Iterable[str] = ()) -> dict[str, dict[str, object]]:
        """As a JSON object: the tasks in `handled`, and all others with a count."""
        always = frozenset(handled)
        views = {task: counters.view() for task, counters in self._tasks.items()}
        return {task: view for task, view in views.items() if task in always or any(view.values())}

    def readings(self, handled: Iterable[str] = ()) -> dict[str, TaskNumbers]:
        """Like `view`, as the heartbeat's types."""
        return {task: _task_numbers(view) for task, view in self.view(handled).items()}


def _task_numbers(view: Mapping[str, Any]) -> TaskNumbers:
    spreads = {name: HistogramReading(**view[name]) for name in _HISTOGRAMS if name in view}
    return TaskNumbers(**{**view, **spreads})
