"""Caps by task: how many of a kind may run at once, here and across all workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from common.contracts.jobs import JobKeys
from common.jobs.limits import TaskLimit
from worker.queue.messages import LIMIT_KEY_TASK, Message


class LocalLimit:
    """Places in this process that some tasks share, and the messages that have them."""

    __slots__ = ("holders", "slots", "tasks", "why")

    def __init__(self, tasks: frozenset[str], slots: int, why: str = "") -> None:
        self.tasks = tasks
        self.slots = slots
        #: Why there are so few.
        self.why = why
        self.holders: set[str] = set()

    @property
    def free(self) -> int:
        """How many more may begin; less than none where the number of places went down."""
        return self.slots - len(self.holders)


class LimitUsage(NamedTuple):
    """A limit of this process as it stands."""

    limit: TaskLimit
    running: int
    why: str


class LimitListener(Protocol):
    """Who lets messages of one queue in."""

    def running_holders(self) -> Iterable[tuple[str, str]]:
        """What runs now: under which name it has its places, and its kind."""

    def on_capacity_freed(self) -> None:
        """Somebody who waits may have a place now."""


class LocalLimits:
    """All places of this process, for the desks of all its queues."""

    def __init__(self, local: Sequence[TaskLimit]) -> None:
        self._configured = [LocalLimit(*limit) for limit in local]
        self._dynamic: dict[frozenset[str], LocalLimit] = {}
        #: What a task must find a place in.
        self.by_task: dict[str, tuple[LocalLimit, ...]] = {}
        self._listeners: list[LimitListener] = []
        self._index()

    def join(self, listener: LimitListener) -> str:
        """Take part; returns what to put before names of messages, which are unique only in their
        queue."""
        self._listeners.append(listener)
        return f"{len(self._listeners)}:" if len(self._listeners) > 1 else ""

    def set_limit(self, tasks: Iterable[str], slots: int | None, why: str = "") -> None:
        """Let so many jobs of `tasks` together run here at once, whatever else limits them."""
        named = frozenset(tasks)
        known = self._dynamic.get(named)
        if slots is None:
            self._dynamic.pop(named, None)
        elif known is not None:
            known.slots, known.why = max(slots, 0), why
        else:
            self._dynamic[named] = fresh = LocalLimit(named, max(slots, 0), why)
            fresh.holders.update(
                name
                for listener in self._listeners
                for name, limit_key in listener.running_holders()
                if named & {limit_key, LIMIT_KEY_TASK.get(limit_key)}
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
        """Which places each task must find one in; a tool of ours also one of its task."""
        every = (*self._configured, *self._dynamic.values())
        tasks = {task for limit in every for task in limit.tasks}
        tasks |= {limit_key for limit_key, task in LIMIT_KEY_TASK.items() if task in tasks}
        self.by_task = {
            task: tuple(limit for limit in every if limit.tasks & {task, LIMIT_KEY_TASK.get(task)})
            for task in tasks
        }


#: Seconds between two looks whether another worker has made room.
PROBE_S = 0.25
#: As many as anybody could want.
UNLIMITED = 1 << 30


class GlobalLimit:
    """Places across all workers. Only Redis can count those, and says no."""

    __slots__ = ("holders", "key", "limit", "probing", "refused")

    def __init__(self, limit: TaskLimit, key: str) -> None:
        self.limit = limit
        self.key = key
        #: Nobody need ask again before the timer is over.
        self.refused: asyncio.TimerHandle | None = None
        #: Messages that were let in here; and of those, the one that came from the waiting room
        #: and has no answer of Redis yet.
        self.holders: set[str] = set()
        self.probing: set[str] = set()

    def clear_refusal(self) -> None:
        if self.refused is not None:
            self.refused.cancel()
            self.refused = None


class TaskLimits:
    """Lets messages in or not. Those outside wait in the waiting room, which is told of room.

    Here, places are counted: those of the settings, and those that `set_places` moves up and down.
    Across workers Redis counts them, and refuses; then one message knocks again now and then.
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
        """Another one as soon as other tasks are limited."""
        return self._local.by_task

    @property
    def tasks(self) -> frozenset[str]:
        """Tasks of which not every message may begin, perhaps."""
        return frozenset(
            LIMIT_KEY_TASK.get(limit_key, limit_key)
            for limit_key in (*self._local.by_task, *self._global)
        )

    # -- moving --------------------------------------------------------------------------------

    def set_limit(self, tasks: Iterable[str], slots: int | None, why: str = "") -> None:
        """Let so many jobs of `tasks` together run here at once, whatever else limits them.

        0: none may begin; what runs goes on, and what comes waits, pending, until this is called
        again. None: no such cap. `why` is for those who wonder.
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
        """What runs now: under which name it has its places, and its kind."""
        return (
            (self._name_prefix + message_id, limit_key) for message_id, limit_key in self._running()
        )

    def on_capacity_freed(self) -> None:
        """Somebody who waits may have a place now."""
        self._on_capacity()

    # -- letting in ----------------------------------------------------------------------------

    def global_limit(self, task: str) -> tuple[str, int] | None:
        """The key that counts a task's running jobs across workers, and their limit."""
        global_limit = self._global.get(task)
        return None if global_limit is None else (global_limit.key, global_limit.limit.slots)

    def capacity(self, task: str) -> int:
        """How many messages of a task may be called from the waiting room."""
        free = min([limit.free for limit in self._local.by_task.get(task, ())], default=UNLIMITED)
        global_limit = self._global.get(task)
        if global_limit is not None:
            free = min(free, 0 if global_limit.refused or global_limit.probing else 1)
        return max(free, 0)

    def acquire(self, message: Message, *, from_wait_queue: bool = False) -> bool:
        """Take a place for a message, `called` from the waiting room or new; False for none."""
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
        """Whether a message has its place already: it runs here, or is about to."""
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
        """Redis let one in: there may be room for the next."""
        global_limit = self._global.get(task)
        if global_limit is not None:
            global_limit.probing.discard(message_id)
            self._on_capacity()

    def on_refused(self, task: str, message_id: str) -> None:
        """Redis says that as many run elsewhere as may; `leave` follows."""
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
