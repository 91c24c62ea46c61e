"""Limits by task: how many jobs of a task may run at once, here and across all workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.limits import TaskLimit
from sluice.worker.queue.messages import LIMIT_KEY_TASK, Message


class LocalLimit:
    """Slots of this process that some tasks share, and the messages that hold them."""

    __slots__ = ("holders", "slots", "tasks", "why")

    def __init__(self, tasks: frozenset[str], slots: int, why: str = "") -> None:
        self.tasks = tasks
        self.slots = slots
        #: The reason for the limit, for the operator.
        self.why = why
        self.holders: set[str] = set()

    @property
    def free(self) -> int:
        """How many more jobs may start; negative after the number of slots was reduced."""
        return self.slots - len(self.holders)


class LimitUsage(NamedTuple):
    """The state of a limit of this process."""

    limit: TaskLimit
    running: int
    why: str


class LimitListener(Protocol):
    """The limits of one queue, which share the slots of this process."""

    def running_holders(self) -> Iterable[tuple[str, str]]:
        """The holder name and limit key of each running job."""

    def on_capacity_freed(self) -> None:
        """A waiting message may have a slot now."""


class LocalLimits:
    """The limits of this process, shared by all its queues."""

    def __init__(self, local: Sequence[TaskLimit]) -> None:
        self._configured = [LocalLimit(*limit) for limit in local]
        self._dynamic: dict[frozenset[str], LocalLimit] = {}
        #: By limit key, the limits of which a job needs a slot each.
        self.by_task: dict[str, tuple[LocalLimit, ...]] = {}
        self._listeners: list[LimitListener] = []
        self._index()

    def join(self, listener: LimitListener) -> str:
        """Register a queue; returns a prefix for its message ids, which are unique only within a
        queue."""
        self._listeners.append(listener)
        return f"{len(self._listeners)}:" if len(self._listeners) > 1 else ""

    def set_limit(self, tasks: Iterable[str], slots: int | None, why: str = "") -> None:
        """See `TaskLimits.set_limit`."""
        group = frozenset(tasks)
        known = self._dynamic.get(group)
        if slots is None:
            self._dynamic.pop(group, None)
        elif known is not None:
            known.slots, known.why = max(slots, 0), why
        else:
            self._dynamic[group] = limit = LocalLimit(group, max(slots, 0), why)
            limit.holders.update(
                name
                for listener in self._listeners
                for name, limit_key in listener.running_holders()
                if group & {limit_key, LIMIT_KEY_TASK.get(limit_key)}
            )
        self._index()
        self.on_capacity_freed()

    def on_capacity_freed(self) -> None:
        for listener in self._listeners:
            listener.on_capacity_freed()

    @property
    def closed(self) -> dict[str, str]:
        """Tasks that may not begin here at all, and why."""
        return {
            task: limit.why
            for limit in self._dynamic.values()
            if limit.slots == 0
            for task in sorted(limit.tasks)
        }

    @property
    def here(self) -> list[LimitUsage]:
        """Every limit of this process, those of the settings first."""
        return [
            LimitUsage(TaskLimit(limit.tasks, limit.slots), len(limit.holders), limit.why)
            for limit in (*self._configured, *self._dynamic.values())
        ]

    def _index(self) -> None:
        """Rebuild `by_task`. An internal tool also needs the slots of its task."""
        every = (*self._configured, *self._dynamic.values())
        tasks = {task for limit in every for task in limit.tasks}
        tasks |= {limit_key for limit_key, task in LIMIT_KEY_TASK.items() if task in tasks}
        self.by_task = {
            task: tuple(limit for limit in every if limit.tasks & {task, LIMIT_KEY_TASK.get(task)})
            for task in tasks
        }


#: Seconds between two checks whether another worker has freed a slot.
PROBE_S = 0.25
#: The capacity of a task without limits.
UNLIMITED = 1 << 30


class GlobalLimit:
    """Slots across all workers. Redis counts them, and refuses a job when all are in use."""

    __slots__ = ("holders", "key", "limit", "probing", "refused")

    def __init__(self, limit: TaskLimit, key: str) -> None:
        self.limit = limit
        self.key = key
        #: After a refusal, the timer before which no message is tried again.
        self.refused: asyncio.TimerHandle | None = None
        #: Messages admitted by this worker. `probing` has the one from the wait queue that has no
        #: answer of Redis yet.
        self.holders: set[str] = set()
        self.probing: set[str] = set()

    def clear_refusal(self) -> None:
        if self.refused is not None:
            self.refused.cancel()
            self.refused = None


class TaskLimits:
    """Decides whether a message may run. Messages that may not are put into the wait queue.

    The slots of this process are counted here: those of the settings, and those that `set_limit`
    changes at runtime. The slots across workers are counted by Redis. After a refusal one message
    is tried again every PROBE_S.
    """

    def __init__(
        self,
        local: Sequence[TaskLimit] | LocalLimits,
        across: Sequence[TaskLimit],
        keys: JobKeys,
        *,
        on_capacity: Callable[[], None] = lambda: None,
        is_waiting: Callable[[str], bool] = lambda task: False,
        running: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        """Several queues may share their `local` slots.

        `on_capacity` is called when a waiting message may have a slot. `is_waiting` is True for a
        task with older messages in the wait queue, which a newer one must not overtake. `running`
        returns the message id and limit key of each running job.
        """
        self._local = local if isinstance(local, LocalLimits) else LocalLimits(local)
        self._name_prefix = self._local.join(self)
        self._global = {
            task: global_limit
            for global_limit in (GlobalLimit(limit, keys.running(limit.name)) for limit in across)
            for task in global_limit.limit.tasks
        }
        for limit_key, task in LIMIT_KEY_TASK.items():
            if task in self._global:
                self._global[limit_key] = self._global[task]
        self._on_capacity = on_capacity
        self._is_waiting = is_waiting
        self._running = running

    def __bool__(self) -> bool:
        return bool(self._local.by_task or self._global)

    @property
    def version(self) -> object:
        """Changes identity when the set of limited tasks may have changed."""
        return self._local.by_task

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks that have a limit."""
        return frozenset(
            LIMIT_KEY_TASK.get(limit_key, limit_key)
            for limit_key in (*self._local.by_task, *self._global)
        )

    # -- limits at runtime ---------------------------------------------------------------------

    def set_limit(self, tasks: Iterable[str], slots: int | None, why: str = "") -> None:
        """Limit the jobs of `tasks` that run here at once, in addition to other limits.

        0 lets no job start: running jobs continue, and new messages wait. None removes the limit.
        `why` is the reason that heartbeats show.
        """
        self._local.set_limit(tasks, slots, why)

    @property
    def closed(self) -> dict[str, str]:
        """Tasks that may not begin here at all, and why."""
        return self._local.closed

    @property
    def here(self) -> list[LimitUsage]:
        """Every limit of this process, those of the settings first."""
        return self._local.here

    @property
    def across(self) -> list[TaskLimit]:
        return list({global_limit.limit: None for global_limit in self._global.values()})

    def running_holders(self) -> Iterable[tuple[str, str]]:
        """The holder name and limit key of each running job."""
        return (
            (self._name_prefix + message_id, limit_key) for message_id, limit_key in self._running()
        )

    def on_capacity_freed(self) -> None:
        """A waiting message may have a slot now."""
        self._on_capacity()

    # -- admission -----------------------------------------------------------------------------

    def global_limit(self, task: str) -> tuple[str, int] | None:
        """The key that counts a task's running jobs across workers, and the limit; or None."""
        global_limit = self._global.get(task)
        return None if global_limit is None else (global_limit.key, global_limit.limit.slots)

    def capacity(self, task: str) -> int:
        """How many messages of a task may be taken from the wait queue."""
        free = min([limit.free for limit in self._local.by_task.get(task, ())], default=UNLIMITED)
        global_limit = self._global.get(task)
        if global_limit is not None:
            free = min(free, 0 if global_limit.refused or global_limit.probing else 1)
        return max(free, 0)

    def acquire(self, message: Message, *, from_wait_queue: bool = False) -> bool:
        """Take a slot of each limit for a message; False if one has none left."""
        task = message.limit_key
        limits, global_limit = self._local.by_task.get(task, ()), self._global.get(task)
        if not limits and global_limit is None:
            return True
        if not from_wait_queue and self._is_waiting(task):
            return False
        if any(each.free <= 0 or self._name_prefix + message.id in each.holders for each in limits):
            return False
        if global_limit is not None:
            if global_limit.refused or message.id in global_limit.holders:
                return False
            global_limit.holders.add(message.id)
            if from_wait_queue:
                global_limit.probing.add(message.id)
        for each in limits:
            each.holders.add(self._name_prefix + message.id)
        return True

    def holds(self, message: Message) -> bool:
        """True if a message has its slots already: its job runs here, or is about to."""
        limit_key = message.limit_key
        global_limit = self._global.get(limit_key)
        if global_limit is not None and message.id in global_limit.holders:
            return True
        return any(
            self._name_prefix + message.id in each.holders
            for each in self._local.by_task.get(limit_key, ())
        )

    def release(self, task: str, message_id: str) -> None:
        limits, global_limit = self._local.by_task.get(task, ()), self._global.get(task)
        if not limits and global_limit is None:
            return
        for each in limits:
            each.holders.discard(self._name_prefix + message_id)
        if global_limit is not None and message_id in global_limit.holders:
            global_limit.holders.discard(message_id)
            global_limit.probing.discard(message_id)
            global_limit.clear_refusal()
        self._local.on_capacity_freed()

    def on_admitted(self, task: str, message_id: str) -> None:
        """Redis began the job: the next waiting message may be tried."""
        global_limit = self._global.get(task)
        if global_limit is not None:
            global_limit.probing.discard(message_id)
            self._on_capacity()

    def on_refused(self, task: str, message_id: str) -> None:
        """Redis refused the job because all slots across workers are in use. `release` follows."""
        global_limit = self._global.get(task)
        if global_limit is None:
            return
        global_limit.holders.discard(message_id)
        global_limit.probing.discard(message_id)
        if global_limit.refused is None:
            delay_s = PROBE_S * random.uniform(0.5, 1.0)
            global_limit.refused = asyncio.get_running_loop().call_later(
                delay_s, self._probe_again, global_limit
            )

    def _probe_again(self, global_limit: GlobalLimit) -> None:
        global_limit.clear_refusal()
        self._on_capacity()
