"""Looks after the messages that wait for a place: calls the oldest in as soon as there is one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redis.exceptions import RedisError

from common.cancellation import cancel
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import DeadReason
from common.contracts.scripts import Answer
from common.errors import SluiceError
from common.rooms import KEEP_PAGE, Rooms
from common.store import WorkerIdentity
from common.wire import Commander
from worker.intake import Intake
from worker.limits import TaskLimits
from worker.messages import Message, message
from worker.registry import Registry
from worker.slots import Slots

log = logging.getLogger(__name__)

#: Seconds between two looks whether others have left messages waiting that have a place here.
LOOK_S = 1.0
#: Seconds, at least, between two looks whether the jobs of those who wait still need a place.
SETTLE_S = 2.0
#: So many may wait, over all tasks, before no more are read: they lie in Redis either way, but what
#: was read counts as in hand, and takes room there.
MOST_WAITING = 10_000
_BACKOFF_S = 0.5
_GO_ON_WAITING = (Answer.LIMITED, Answer.BUSY, Answer.WAIT)
_TROUBLE = (RedisError, SluiceError, *TRANSIENT_ERRORS)

Call = Callable[[list[Message]], None]


class Waiting:
    """A worker's part in the waiting rooms, which all workers share.

    Whoever has a place takes the message that has waited for longest, wherever it was read. While a
    task has no place anywhere, its messages lie still: nobody claims them, and those whose job was
    canceled or has expired are settled all the same.
    """

    def __init__(
        self,
        rooms: Rooms,
        wire: Commander,
        queue: str,
        worker: WorkerIdentity,
        slots: Slots,
        limits: TaskLimits,
        intake: Intake,
        registry: Registry,
    ) -> None:
        self._rooms = rooms
        self._wire = wire
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._limits = limits
        self._intake = intake
        self._registry = registry
        #: How many wait, by task (or kind), as far as is known.
        self.numbers: dict[str, int] = {}
        #: When the message was queued that has waited for longest, by task, in milliseconds.
        self.oldest_ms: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._putting: set[asyncio.Task[None]] = set()
        #: Messages that wait, without their payloads; and when they were last looked at.
        self._known: dict[str, Message] = {}
        self._settled_at = 0.0
        limits.on_room = self.wake

    @property
    def number(self) -> int:
        """How many wait, over all tasks."""
        return sum(self.numbers.values())

    @property
    def full(self) -> bool:
        """Whether so many wait that no more should be read."""
        return bool(self.numbers) and self.number >= MOST_WAITING

    def wake(self) -> None:
        """There may be a place for somebody who waits."""
        if self.numbers:
            self._wake.set()

    # -- going in ------------------------------------------------------------------------------

    def put(self, messages: Sequence[Message]) -> None:
        """Let messages wait. Where that fails they stay ours, and are claimed after a lease."""
        by_task: dict[str, list[str]] = {}
        for each in messages:
            by_task.setdefault(each.kind, []).append(each.id)
        for task, ids in by_task.items():
            self._limits.queued.add(task)
            self.numbers[task] = self.numbers.get(task, 0) + len(ids)
            putting = asyncio.get_running_loop().create_task(self._put(task, ids))
            self._putting.add(putting)
            putting.add_done_callback(self._putting.discard)

    async def _put(self, task: str, ids: list[str]) -> None:
        try:
            await self._rooms.put(task, ids)
        except _TROUBLE as error:
            log.warning("redis: %s; %d messages stay with this worker", error, len(ids))
        self._limits.queued.add(task)  # somebody may have looked before they were there
        self.numbers.setdefault(task, len(ids))
        self.wake()

    async def close(self) -> None:
        """Give up on what is under way."""
        await cancel(*self._putting)

    # -- coming out ----------------------------------------------------------------------------

    async def run(self, call: Call) -> None:
        """Call messages in until interrupted; trouble is left to the next look."""
        await asyncio.gather(self._run_calling(call), self._run_keeping())

    async def _run_calling(self, call: Call) -> None:
        clock = asyncio.get_running_loop().time
        next_look = 0.0
        while not self._slots.interrupted:
            try:
                if clock() >= next_look:  # others may have left somebody waiting
                    await self.count()
                    next_look = clock() + LOOK_S
                await self.run_once(call)
                await self._woken_within(LOOK_S)
                continue
            except _TROUBLE as error:
                log.warning("redis: %s; who waits goes on waiting", error)
            except Exception:  # whatever it is, they must not be forgotten
                log.exception("who waits goes on waiting")
            next_look = 0.0
            await asyncio.sleep(_BACKOFF_S * random.uniform(0.5, 1.0))

    async def _woken_within(self, seconds: float) -> None:
        waiting = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()

    async def count(self) -> None:
        """See how many wait."""
        self._know(await self._rooms.count())

    def _know(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers
        self._limits.queued = set(numbers)

    async def run_once(self, call: Call) -> int:
        """Call in everybody who has a place now; returns how many."""
        called = 0
        while True:
            self._wake.clear()
            tasks = self._with_room()
            if not tasks:
                return called
            free = await self._slots.want()
            tasks = self._with_room()
            if self._slots.interrupted or not tasks:
                return called
            most = min(free, *(self._limits.room(task) for task in tasks))
            messages = await self._take(tasks, most)
            for each in messages:
                self.numbers[each.kind] = max(self.numbers.get(each.kind, 0) - 1, 0)
            if len(messages) < most:  # those rooms are empty now
                self._know({task: n for task, n in self.numbers.items() if task not in tasks})
            if messages:
                called += len(messages)
                call(messages)

    def _with_room(self) -> list[str]:
        handled = self._registry.kinds
        return [task for task in self.numbers if task in handled and self._limits.room(task)]

    async def _take(self, tasks: list[str], most: int) -> list[Message]:
        # Held before we ask, or else the reader might fill the places meanwhile.
        places = self._slots.hold_for(most)
        try:
            taken = await self._rooms.take(tasks, self._worker.consumer, most)
        finally:
            places.end()
        return [message((each.id.encode(), each.texts)) for each in taken]

    # -- meanwhile -----------------------------------------------------------------------------

    async def _run_keeping(self) -> None:
        every_s = self._worker.lease_ms / 3000
        while not self._slots.interrupted:
            await asyncio.sleep(every_s)
            try:
                await self.keep()
            except _TROUBLE as error:
                log.warning("redis: %s; who waits may look forgotten", error)
            except Exception:
                log.exception("who waits may look forgotten")

    async def keep(self) -> None:
        """Look after everybody who waits: that nobody else does, and whether they still need to."""
        now = asyncio.get_running_loop().time()
        settle = now - self._settled_at >= SETTLE_S
        if settle:
            self._settled_at = now
        still: dict[str, Message] = {}
        oldest_ms: dict[str, int] = {}
        for task in await self._rooms.count():
            page = await self._rooms.keep(task)
            while page:
                oldest_ms.setdefault(task, int(page[0].partition("-")[0]))
                if settle:
                    still.update(await self._settle(page))
                page = await self._rooms.keep(task, page[-1]) if len(page) == KEEP_PAGE else []
        self.oldest_ms = oldest_ms
        if settle:
            self._known = still

    async def _settle(self, ids: list[str]) -> dict[str, Message]:
        """Whose job has ended or is gone needs no place; returns the others."""
        found = {each.id: each for each in await self._read(set(ids) - set(self._known))}
        waiting = [
            self._known.get(message_id) or found[message_id].without_payload()
            for message_id in ids
            if message_id in self._known or message_id in found
        ]
        answers = await self._intake.look(waiting)
        for each, answer in zip(waiting, answers):
            if answer is Answer.MISSING:
                for whole in await self._read([each.id]):
                    await self._intake.put_aside(whole, DeadReason.NO_JOB)
        return {each.id: each for each, answer in zip(waiting, answers) if answer in _GO_ON_WAITING}

    async def _read(self, ids: Collection[str]) -> list[Message]:
        """Messages as they lie on the queue; those that somebody deleted do not come."""
        replies: list[Any] = await asyncio.gather(
            *(self._wire.execute_command("XRANGE", self._queue, each, each) for each in ids)
        )
        return [message(entry) for reply in replies for entry in reply]
