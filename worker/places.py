"""Places in this process: how many jobs of a task may run here at once, whatever queue they are of.

The settings name some; others go up and down with what handlers find out (`set_places`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from common.task_limits import TaskLimit
from worker.kinds import TASK_OF


class Places:
    """Places in this process that some tasks share, and the messages that have them."""

    __slots__ = ("places", "taken", "tasks", "why")

    def __init__(self, tasks: frozenset[str], places: int, why: str = "") -> None:
        self.tasks = tasks
        self.places = places
        #: Why there are so few.
        self.why = why
        self.taken: set[str] = set()

    @property
    def free(self) -> int:
        """How many more may begin; less than none where the number of places went down."""
        return self.places - len(self.taken)


class Counted(NamedTuple):
    """A limit of this process as it stands."""

    limit: TaskLimit
    running: int
    why: str


class Desk(Protocol):
    """Who lets messages of one queue in."""

    def place_names(self) -> Iterable[tuple[str, str]]:
        """What runs now: under which name it has its places, and its kind."""

    def room_made(self) -> None:
        """Somebody who waits may have a place now."""


class LocalPlaces:
    """All places of this process, for the desks of all its queues."""

    def __init__(self, local: Sequence[TaskLimit]) -> None:
        self._fixed = [Places(*limit) for limit in local]
        self._movable: dict[frozenset[str], Places] = {}
        #: What a task must find a place in.
        self.of: dict[str, tuple[Places, ...]] = {}
        self._desks: list[Desk] = []
        self._arrange()

    def join(self, desk: Desk) -> str:
        """Take part; returns what to put before names of messages, which are unique only in their
        queue."""
        self._desks.append(desk)
        return f"{len(self._desks)}:" if len(self._desks) > 1 else ""

    def set_places(self, tasks: Iterable[str], places: int | None, why: str = "") -> None:
        """Let so many jobs of `tasks` together run here at once, whatever else limits them."""
        named = frozenset(tasks)
        known = self._movable.get(named)
        if places is None:
            self._movable.pop(named, None)
        elif known is not None:
            known.places, known.why = max(places, 0), why
        else:
            self._movable[named] = fresh = Places(named, max(places, 0), why)
            fresh.taken.update(
                name
                for desk in self._desks
                for name, kind in desk.place_names()
                if named & {kind, TASK_OF.get(kind)}
            )
        self._arrange()
        self.room_made()

    def room_made(self) -> None:
        """Tell everybody."""
        for desk in self._desks:
            desk.room_made()

    @property
    def closed(self) -> dict[str, str]:
        """Tasks that may not begin here at all, and why."""
        return {
            task: places.why
            for places in self._movable.values()
            if places.places == 0
            for task in sorted(places.tasks)
        }

    @property
    def here(self) -> list[Counted]:
        """Every limit of this process, those of the settings first."""
        return [
            Counted(TaskLimit(places.tasks, places.places), len(places.taken), places.why)
            for places in (*self._fixed, *self._movable.values())
        ]

    def _arrange(self) -> None:
        """Which places each task must find one in; a tool of ours also one of its task."""
        every = (*self._fixed, *self._movable.values())
        tasks = {task for places in every for task in places.tasks}
        tasks |= {kind for kind, task in TASK_OF.items() if task in tasks}
        self.of = {
            task: tuple(places for places in every if places.tasks & {task, TASK_OF.get(task)})
            for task in tasks
        }
