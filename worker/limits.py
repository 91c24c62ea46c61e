"""Caps by task: how many of a kind may run at once, here and across all workers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping

from common.contracts.jobs import JobKeys
from worker.messages import Message

#: Seconds between two looks whether another worker has made room.
PROBE_S = 0.25

Defer = Callable[[str, float], None]


class TaskLimits:
    """Lets messages pass or parks them. A parked message takes no place, and stays pending.

    Here, places are counted. Across workers Redis counts them, and refuses; then one message of
    the task knocks again now and then, and the others wait behind it.
    """

    def __init__(
        self,
        local: Mapping[str, int],
        across: Mapping[str, int],
        keys: JobKeys,
        defer: Defer,
        most_parked: int,
    ) -> None:
        self._local = local
        self._across = across
        self._keys = keys
        self._defer = defer
        self._most_parked = most_parked
        self._running: dict[str, int] = {}
        self._parked: dict[str, deque[str]] = {}
        self._knocking: dict[str, str] = {}
        #: Messages that were called and have not come yet, with their task.
        self._called: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._local or self._across)

    @property
    def parked(self) -> int:
        """How many messages wait for a place of their task."""
        return sum(len(waiting) for waiting in self._parked.values())

    @property
    def full(self) -> bool:
        """Whether so many are parked that no more should be read."""
        return self.parked >= self._most_parked

    def across(self, task: str) -> tuple[str, int] | None:
        """The key that counts a task's running jobs across workers, and their limit."""
        places = self._across.get(task)
        return None if places is None else (self._keys.running(task), places)

    def enter(self, message: Message) -> bool:
        """Take a place for a message; False when there is none, and it is parked."""
        task = message.task
        if task not in self._local and task not in self._across:
            return True
        self._called.pop(message.id, None)
        if self._knocking.get(task) == message.id:
            del self._knocking[task]
        running = self._running.get(task, 0)
        if running >= self._local.get(task, running + 1):
            self._park(task, message.id)
            return False
        self._running[task] = running + 1
        return True

    def leave(self, task: str) -> None:
        """A place is free again; whoever waits for it is next."""
        if task in self._running:
            self._running[task] -= 1
            self._call_next(task)

    def admitted(self, task: str) -> None:
        """One of a task limited across workers was let in: there may be room for the next."""
        if task in self._across:
            self._call_next(task)

    def refused(self, message: Message) -> None:
        """Redis says that as many run elsewhere as may; `leave` follows."""
        task = message.task
        if task in self._knocking:
            self._park(task, message.id)
        else:
            self._knocking[task] = message.id
            self._call(task, message.id, PROBE_S * random.uniform(0.5, 1.0))

    def vanished(self, message_ids: set[str]) -> None:
        """Messages were acknowledged or deleted while they waited: their turn goes to the next."""
        for message_id in message_ids:
            task = self._called.pop(message_id, None)
            if task is not None:
                if self._knocking.get(task) == message_id:
                    del self._knocking[task]
                self._call_next(task)

    def _park(self, task: str, message_id: str) -> None:
        waiting = self._parked.setdefault(task, deque())
        if message_id not in waiting:
            waiting.append(message_id)

    def _call_next(self, task: str) -> None:
        waiting = self._parked.get(task)
        running = self._running.get(task, 0)
        has_place = running < self._local.get(task, running + 1)
        if waiting and has_place and task not in self._knocking:
            self._call(task, waiting.popleft(), 0.0)

    def _call(self, task: str, message_id: str, delay_s: float) -> None:
        self._called[message_id] = task
        self._defer(message_id, delay_s)
