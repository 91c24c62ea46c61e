"""What this process has done so far, in plain integers: counting a job costs about a microsecond.

The numbers leave with the worker's heartbeats; a gateway shows them under `/metrics`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

from common.contracts.jobs import TTL_MAX_S
from common.contracts.workers import (
    BOUNDS,
    SECONDS_BOUNDS,
    TASK_LABELS,
    UNKNOWN_TASK,
    Count,
    Spread,
)
from common.histogram import Histogram
from worker.outcome import Outcome

# Looking up a member of an enum, or calling a method, costs as much as counting does: on the way of
# every job, histograms are counted up in place.
_DONE, _RETRY, _CANCELED = Outcome.DONE, Outcome.RETRY, Outcome.CANCELED
_POSTPONED = Outcome.POSTPONED


class TaskTally:
    """The numbers of one task."""

    __slots__ = (
        "at_once",
        "attempts",
        "canceled",
        "deadlettered",
        "end_to_end",
        "expired",
        "failed",
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
        #: Jobs that ended at their first attempt, which is most of them: cheaper than a histogram.
        self.at_once = 0
        self.queue_wait = Histogram(BOUNDS[Spread.QUEUE_WAIT])
        self.run = Histogram(BOUNDS[Spread.RUN])
        self.end_to_end = Histogram(BOUNDS[Spread.END_TO_END])
        self.attempts = Histogram(BOUNDS[Spread.ATTEMPTS])

    def view(self) -> dict[str, object]:
        """As JSON; histograms without a value are left out."""
        self.attempts.counts[0] += self.at_once
        self.attempts.sum += self.at_once
        self.at_once = 0
        found: dict[str, object] = {count.value: getattr(self, count.value) for count in Count}
        for spread in Spread:
            histogram: Histogram = getattr(self, spread.value)
            if any(histogram.counts):
                found[spread.value] = histogram.view()
        return found


class Tally:
    """The numbers of this process, by task. Tasks outside the contract are counted together."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tasks = {task: TaskTally() for task in TASK_LABELS}
        self._unknown = self._tasks[UNKNOWN_TASK]

    def of(self, task: str) -> TaskTally:
        """The numbers of a task."""
        return self._tasks.get(task, self._unknown)

    def total(self, count: Count) -> int:
        """One of the counters, of all tasks together."""
        return sum(getattr(tally, count.value) for tally in self._tasks.values())

    def started(self, task: str, message_id: str, attempt: int) -> float:
        """An attempt begins; returns when its message was queued, in seconds, 0 for unknown.

        Only a first attempt tells how long a job had to wait. A job with a delay is put on the
        queue when it is due, so the delay is no part of it.
        """
        tally = self._tasks.get(task, self._unknown)
        tally.started += 1
        try:
            queued_s = int(message_id.partition("-")[0]) / 1000
        except ValueError:
            return 0.0
        age_s = self._clock() - queued_s
        if age_s > TTL_MAX_S:  # a foreign producer numbers its messages itself
            return 0.0
        if attempt == 1:
            if age_s < 0.0:  # the clock of Redis may be a little ahead
                age_s = 0.0
            wait = tally.queue_wait
            wait.counts[bisect_left(SECONDS_BOUNDS, age_s)] += 1
            wait.sum += age_s
        return queued_s

    def concluded(
        self,
        outcome: Outcome,
        task: str,
        queued_s: float,
        attempt: int,
        ran_s: float,
        dead: bool = False,
    ) -> None:
        """An attempt's report was taken: the job has ended, or gets another attempt."""
        tally = self._tasks.get(task, self._unknown)
        run = tally.run
        run.counts[bisect_left(SECONDS_BOUNDS, ran_s)] += 1
        run.sum += ran_s
        if outcome is _DONE:
            tally.succeeded += 1
        elif outcome is _RETRY:
            tally.retried += 1
            return
        elif outcome is _POSTPONED:
            tally.postponed += 1
            return
        elif outcome is _CANCELED:
            tally.canceled += 1
        else:
            tally.failed += 1
            tally.deadlettered += dead
        if attempt == 1:
            tally.at_once += 1
        else:
            tally.attempts.observe(attempt)
        if queued_s:
            age_s = self._clock() - queued_s
            if age_s < 0.0:
                age_s = 0.0
            whole = tally.end_to_end
            whole.counts[bisect_left(SECONDS_BOUNDS, age_s)] += 1
            whole.sum += age_s

    def given_up(self, task: str, attempts: int) -> None:
        """A job was begun as often as allowed and never ended: it is a dead letter now."""
        tally = self.of(task)
        tally.failed += 1
        tally.deadlettered += 1
        tally.attempts.observe(attempts)

    def put_aside(self, task: str, *, expired: bool) -> None:
        """A message became a dead letter, perhaps because its job's time was up."""
        tally = self.of(task)
        tally.deadlettered += 1
        if expired:
            tally.expired += 1

    def reclaimed(self, tasks: Iterable[str]) -> None:
        """Messages were taken over from workers that fell silent."""
        for task in tasks:
            self.of(task).reclaimed += 1

    def view(self, handled: Iterable[str] = ()) -> dict[str, dict[str, object]]:
        """As JSON: tasks that this worker handles, and any other that was counted."""
        always = frozenset(handled)
        views = {task: tally.view() for task, tally in self._tasks.items()}
        return {task: view for task, view in views.items() if task in always or any(view.values())}
