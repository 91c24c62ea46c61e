"""Caps by task: how many of a kind may run at once, here and across all workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

from common.contracts.jobs import JobKeys
from common.task_limits import TaskLimit
from worker.kinds import TASK_OF
from worker.messages import Message
from worker.places import Counted, LocalPlaces

#: Seconds between two looks whether another worker has made room.
PROBE_S = 0.25
#: As many as anybody could want.
ANY_NUMBER = 1 << 30


class Shared:
    """Places across all workers. Only Redis can count those, and says no."""

    __slots__ = ("inside", "key", "limit", "refused", "trying")

    def __init__(self, limit: TaskLimit, key: str) -> None:
        self.limit = limit
        self.key = key
        #: Nobody need ask again before the timer is over.
        self.refused: asyncio.TimerHandle | None = None
        #: Messages that were let in here; and of those, the one that came from the waiting room
        #: and has no answer of Redis yet.
        self.inside: set[str] = set()
        self.trying: set[str] = set()

    def forgive(self) -> None:
        """There may be room again."""
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
        local: Sequence[TaskLimit] | LocalPlaces,
        across: Sequence[TaskLimit],
        keys: JobKeys,
    ) -> None:
        """Several queues may share their `local` places."""
        self._local = local if isinstance(local, LocalPlaces) else LocalPlaces(local)
        self._desk = self._local.join(self)
        self._shared = {
            task: shared
            for shared in (Shared(limit, keys.running(limit.name)) for limit in across)
            for task in shared.limit.tasks
        }
        for kind, task in TASK_OF.items():
            if task in self._shared:
                self._shared[kind] = self._shared[task]
        #: Tasks of which older messages wait: a newer one must not overtake them.
        self.queued: set[str] = set()
        #: Told that somebody who waits may have a place now.
        self.on_room: Callable[[], None] = lambda: None
        #: Messages that run here now, with their tasks.
        self.running: Callable[[], Iterable[tuple[str, str]]] = tuple

    def __bool__(self) -> bool:
        return bool(self._local.of or self._shared)

    @property
    def version(self) -> object:
        """Another one as soon as other tasks are limited."""
        return self._local.of

    @property
    def tasks(self) -> frozenset[str]:
        """Tasks of which not every message may begin, perhaps."""
        return frozenset(TASK_OF.get(kind, kind) for kind in (*self._local.of, *self._shared))

    # -- moving --------------------------------------------------------------------------------

    def set_places(self, tasks: Iterable[str], places: int | None, why: str = "") -> None:
        """Let so many jobs of `tasks` together run here at once, whatever else limits them.

        0: none may begin; what runs goes on, and what comes waits, pending, until this is called
        again. None: no such cap. `why` is for those who wonder.
        """
        self._local.set_places(tasks, places, why)

    @property
    def closed(self) -> dict[str, str]:
        """Tasks that may not begin here at all, and why."""
        return self._local.closed

    @property
    def here(self) -> list[Counted]:
        """Every limit of this process, those of the settings first."""
        return self._local.here

    @property
    def across(self) -> list[TaskLimit]:
        """Every limit across workers."""
        return list({shared.limit: None for shared in self._shared.values()})

    def place_names(self) -> Iterable[tuple[str, str]]:
        """What runs now: under which name it has its places, and its kind."""
        return ((self._desk + message_id, kind) for message_id, kind in self.running())

    def room_made(self) -> None:
        """Somebody who waits may have a place now."""
        self.on_room()

    # -- letting in ----------------------------------------------------------------------------

    def shared_by(self, task: str) -> tuple[str, int] | None:
        """The key that counts a task's running jobs across workers, and their limit."""
        shared = self._shared.get(task)
        return None if shared is None else (shared.key, shared.limit.places)

    def room(self, task: str) -> int:
        """How many messages of a task may be called from the waiting room."""
        free = min([places.free for places in self._local.of.get(task, ())], default=ANY_NUMBER)
        shared = self._shared.get(task)
        if shared is not None:
            free = min(free, 0 if shared.refused or shared.trying else 1)
        return max(free, 0)

    def enter(self, message: Message, *, called: bool = False) -> bool:
        """Take a place for a message, `called` from the waiting room or new; False for none."""
        task = message.kind
        places, shared = self._local.of.get(task, ()), self._shared.get(task)
        if not places and shared is None:
            return True
        if not called and task in self.queued:
            return False
        if any(each.free <= 0 or self._desk + message.id in each.taken for each in places):
            return False
        if shared is not None:
            if shared.refused or message.id in shared.inside:
                return False
            shared.inside.add(message.id)
            if called:
                shared.trying.add(message.id)
        for each in places:
            each.taken.add(self._desk + message.id)
        return True

    def inside(self, message: Message) -> bool:
        """Whether a message has its place already: it runs here, or is about to."""
        kind = message.kind
        shared = self._shared.get(kind)
        if shared is not None and message.id in shared.inside:
            return True
        return any(self._desk + message.id in each.taken for each in self._local.of.get(kind, ()))

    def leave(self, task: str, message_id: str) -> None:
        """A place is free again."""
        places, shared = self._local.of.get(task, ()), self._shared.get(task)
        if not places and shared is None:
            return
        for each in places:
            each.taken.discard(self._desk + message_id)
        if shared is not None and message_id in shared.inside:
            shared.inside.discard(message_id)
            shared.trying.discard(message_id)
            shared.forgive()
        self._local.room_made()

    def admitted(self, task: str, message_id: str) -> None:
        """Redis let one in: there may be room for the next."""
        shared = self._shared.get(task)
        if shared is not None:
            shared.trying.discard(message_id)
            self.on_room()

    def refused(self, task: str, message_id: str) -> None:
        """Redis says that as many run elsewhere as may; `leave` follows."""
        shared = self._shared.get(task)
        if shared is None:
            return
        shared.inside.discard(message_id)
        shared.trying.discard(message_id)
        if shared.refused is None:
            delay_s = PROBE_S * random.uniform(0.5, 1.0)
            shared.refused = asyncio.get_running_loop().call_later(delay_s, self._knock, shared)

    def _knock(self, shared: Shared) -> None:
        shared.forgive()
        self.on_room()
