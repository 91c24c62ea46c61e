"""The wait queues of limited tasks: messages that wait until their task has a free slot."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redis.exceptions import RedisError

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import DeadReason
from sluice.common.contracts.queue import Answer
from sluice.common.errors import SluiceError
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.jobs.wait_queue import TOUCH_PAGE_SIZE, WaitQueues
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.text import plural
from sluice.worker.queue.claim import Claimer
from sluice.worker.queue.limits import TaskLimits
from sluice.worker.queue.messages import Message, parse_message
from sluice.worker.queue.slots import Slots
from sluice.worker.registry import Registry

log = logging.getLogger(__name__)

#: Seconds between two polls for messages that other workers put into the wait queues.
POLL_S = 1.0
#: Seconds at least between two checks whether the jobs of waiting messages still need to run.
CHECK_S = 2.0
#: Messages that may wait, over all tasks, before no more are read. They are in Redis in any case,
#: but a message that was read also occupies the pending list.
MOST_WAITING = 10_000
_BACKOFF_S = 0.5
_STILL_WAITING = (Answer.LIMITED, Answer.BUSY, Answer.WAIT)
_REDIS_ERRORS = (RedisError, SluiceError, *TRANSIENT_ERRORS)

OfferFunction = Callable[[list[Message]], None]


class WaitingMessages:
    """The messages of one queue that wait for a slot of their task, as far as this worker knows.

    The wait queues are in Redis and all workers share them. The counts here are an estimate, which
    `refresh` corrects.
    """

    def __init__(self, wait_queues: WaitQueues) -> None:
        self._wait_queues = wait_queues
        #: How many messages wait, by limit key.
        self.counts: dict[str, int] = {}
        #: Set when a waiting message may have a slot.
        self.capacity_freed = asyncio.Event()
        self._put_tasks: set[asyncio.Task[None]] = set()

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def full(self) -> bool:
        """True if so many messages wait that no more should be read."""
        return bool(self.counts) and self.total >= MOST_WAITING

    def has(self, task: str) -> bool:
        """True if messages with this limit key wait."""
        return task in self.counts

    def wake(self) -> None:
        """A waiting message may have a slot now."""
        if self.counts:
            self.capacity_freed.set()

    def put(self, messages: Sequence[Message]) -> None:
        """Move messages to the wait queues. If that fails they stay pending for this worker, and
        are claimed again after a lease."""
        by_task: dict[str, list[str]] = {}
        for each in messages:
            by_task.setdefault(each.limit_key, []).append(each.id)
        for task, ids in by_task.items():
            self.counts[task] = self.counts.get(task, 0) + len(ids)
            putting = asyncio.get_running_loop().create_task(self._put(task, ids))
            self._put_tasks.add(putting)
            putting.add_done_callback(self._put_tasks.discard)

    async def _put(self, task: str, ids: list[str]) -> None:
        try:
            await self._wait_queues.put(task, ids)
        except _REDIS_ERRORS as error:
            messages = plural(len(ids), "message stays", "messages stay")
            log.warning("redis: %s; %s with this worker", error, messages)
        self.counts.setdefault(task, len(ids))  # a refresh may have read the count too early
        self.wake()

    def remove(self, messages: Sequence[Message]) -> None:
        """Count messages out that were taken from the wait queues."""
        for each in messages:
            if each.limit_key in self.counts:
                self.counts[each.limit_key] = max(self.counts[each.limit_key] - 1, 0)

    def mark_empty(self, tasks: Collection[str]) -> None:
        """The wait queues of these tasks are empty."""
        self.counts = {task: n for task, n in self.counts.items() if task not in tasks}

    async def refresh(self) -> None:
        """Read the counts from Redis."""
        self.counts = await self._wait_queues.count()

    async def close(self) -> None:
        """Abandon moves that are in progress."""
        await cancel(*self._put_tasks)


class WaitQueueConsumer:
    """Takes messages from the wait queues when a slot of their task is free.

    The message that has waited longest comes first, no matter which worker read it. While a task
    has no free slot anywhere, its messages are only renewed, so that no worker claims them; those
    whose job was canceled or has expired are settled.
    """

    def __init__(
        self,
        waiting: WaitingMessages,
        wait_queues: WaitQueues,
        connection: CommandClient,
        queue: str,
        worker: WorkerIdentity,
        slots: Slots,
        limits: TaskLimits,
        claimer: Claimer,
        registry: Registry,
    ) -> None:
        self._waiting = waiting
        self._wait_queues = wait_queues
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._limits = limits
        self._claimer = claimer
        self._registry = registry
        #: When the oldest waiting message was queued, by limit key, Unix milliseconds.
        self.oldest_ms: dict[str, int] = {}
        #: Waiting messages without their payloads, from the last check of their jobs.
        self._known: dict[str, Message] = {}
        self._checked_at = 0.0

    async def run(self, offer: OfferFunction) -> None:
        """Take messages until interrupted. After an error the next poll tries again."""
        await asyncio.gather(self._run_dequeue(offer), self._run_renewal())

    async def _run_dequeue(self, offer: OfferFunction) -> None:
        clock = asyncio.get_running_loop().time
        next_poll = 0.0
        while not self._slots.interrupted:
            try:
                if clock() >= next_poll:  # other workers put messages into the wait queues, too
                    await self._waiting.refresh()
                    next_poll = clock() + POLL_S
                await self.run_once(offer)
                await self._woken_within(POLL_S)
                continue
            except _REDIS_ERRORS as error:
                log.warning("redis: %s; messages of limited tasks wait longer", error)
            except Exception:  # the loop must continue after any error
                log.exception("wait queues failed unexpectedly; their messages wait longer")
            next_poll = 0.0
            await asyncio.sleep(_BACKOFF_S * random.uniform(0.5, 1.0))

    async def _woken_within(self, seconds: float) -> None:
        waiting = asyncio.ensure_future(self._waiting.capacity_freed.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()

    async def run_once(self, offer: OfferFunction) -> int:
        """Take all messages that have a slot now; returns how many."""
        count = 0
        while True:
            self._waiting.capacity_freed.clear()
            tasks = self._tasks_with_capacity()
            if not tasks:
                return count
            free = await self._slots.wait_free_urgent()
            tasks = self._tasks_with_capacity()
            if self._slots.interrupted or not tasks:
                return count
            most = min(free, *(self._limits.capacity(task) for task in tasks))
            messages = await self._dequeue(tasks, most)
            self._waiting.remove(messages)
            if len(messages) < most:
                self._waiting.mark_empty(tasks)
            if messages:
                count += len(messages)
                offer(messages)

    def _tasks_with_capacity(self) -> list[str]:
        handled = self._registry.limit_keys
        return [
            task for task in self._waiting.counts if task in handled and self._limits.capacity(task)
        ]

    async def _dequeue(self, tasks: list[str], most: int) -> list[Message]:
        # Reserved before the call, because the reader could fill the slots meanwhile.
        reservation = self._slots.reserve(most)
        try:
            taken = await self._wait_queues.take(tasks, self._worker.consumer, most)
        finally:
            reservation.release()
        return [parse_message((each.id.encode(), each.fields)) for each in taken]

    # -- renewal -------------------------------------------------------------------------------

    async def _run_renewal(self) -> None:
        every_s = self._worker.lease_ms / 3000
        while not self._slots.interrupted:
            await asyncio.sleep(every_s)
            try:
                await self.touch()
            except _REDIS_ERRORS as error:
                log.warning("redis: %s; waiting messages are not renewed", error)
            except Exception:
                log.exception("waiting messages are not renewed after an unexpected error")

    async def touch(self) -> None:
        """Renew the waiting messages, so that no worker claims them. Every CHECK_S also settle
        those whose job does not need to run any more."""
        now = asyncio.get_running_loop().time()
        settle = now - self._checked_at >= CHECK_S
        if settle:
            self._checked_at = now
        still: dict[str, Message] = {}
        oldest_ms: dict[str, int] = {}
        for task in await self._wait_queues.count():
            page = await self._wait_queues.touch(task)
            while page:
                oldest_ms.setdefault(task, int(page[0].partition("-")[0]))
                if settle:
                    still.update(await self._check_jobs(page))
                page = (
                    await self._wait_queues.touch(task, page[-1])
                    if len(page) == TOUCH_PAGE_SIZE
                    else []
                )
        self.oldest_ms = oldest_ms
        if settle:
            self._known = still

    async def _check_jobs(self, ids: list[str]) -> dict[str, Message]:
        """Settle the messages whose job has ended or is gone; returns the others."""
        found = {each.id: each for each in await self._read(set(ids) - set(self._known))}
        waiting = [
            self._known.get(message_id) or found[message_id].without_payload()
            for message_id in ids
            if message_id in self._known or message_id in found
        ]
        answers = await self._claimer.check(waiting)
        for each, answer in zip(waiting, answers):
            if answer is Answer.MISSING:
                for message in await self._read([each.id]):  # with its payload
                    await self._claimer.dead_letter(message, DeadReason.NO_JOB)
        return {each.id: each for each, answer in zip(waiting, answers) if answer in _STILL_WAITING}

    async def _read(self, ids: Collection[str]) -> list[Message]:
        """Read messages from the stream; deleted ones are left out."""
        replies: list[Any] = await asyncio.gather(
            *(self._connection.execute_command("XRANGE", self._queue, each, each) for each in ids)
        )
        return [parse_message(entry) for reply in replies for entry in reply]
