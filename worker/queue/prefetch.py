"""Takes the next messages with a call that leaves anyway, while there are more than can run.

A worker that is behind would otherwise wait in turn for each of three replies: messages, the right
to begin, the end. So what ends some jobs begins others: one round trip for both, and Redis works on
one half of the places while we work on the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from common.contracts.queue import DO_NOT_BEGIN
from common.errors import CorruptKey, StoreUnavailable
from common.redis.batching import RecordOutcome, ScriptBatcher
from common.redis.scripts import Record, Reply
from worker.queue.admission import Admission
from worker.queue.claim import Claimer
from worker.queue.fair_share import Share
from worker.queue.limits import TaskLimits
from worker.queue.messages import Message, parse_message
from worker.queue.slots import Reservation, Slots

log = logging.getLogger(__name__)

#: Where several queues want the same places, those of short jobs are left to this one so long.
REPORT_S = 0.01


class PiggybackFetch:
    """Begins when a read has brought all that was asked for, and ends when there is no more.

    Messages of limited tasks are taken and go the usual way: which of them may begin is not for
    Redis to say.
    """

    def __init__(
        self,
        batcher: ScriptBatcher,
        slots: Slots,
        limits: TaskLimits,
        claimer: Claimer,
        admission: Admission,
        count: int,
        max_attempts: Mapping[str, int],
        share: Share | None = None,
    ) -> None:
        self._batcher = batcher
        self._slots = slots
        self._limits = limits
        self._claimer = claimer
        self._admission = admission
        self._count = count
        self._max_attempts = max_attempts
        #: What there is to say of tasks, as long as the limits have this version.
        self._options: Mapping[str, int | str] = {}
        self._options_version: object = None
        #: Where other queues want the same places.
        self._share = share
        #: Whether there are probably more messages.
        self.active = False
        self._in_flight = 0
        #: Of the newest message that is known to have been handed out.
        self._last_id = ""
        #: Until then, jobs that came along have probably ended, and others come with their reports.
        self._next_report_by = 0.0
        self._changed = asyncio.Event()

    def record_read(self, messages: Sequence[Message], asked: int) -> None:
        """Somebody has read messages: there are more if they were as many as asked for."""
        self.active = len(messages) == asked
        self._record(messages)

    def _record(self, messages: Sequence[Message]) -> None:
        if messages:
            self._last_id = messages[-1].id
        self._next_report_by = time.monotonic() + REPORT_S

    def deactivate(self) -> None:
        """Stop fetching until a read returns as many messages as it asked for."""
        self.active = False

    def wake(self) -> None:
        """Let nobody wait for a change here."""
        self._changed.set()

    @property
    def busy(self) -> bool:
        """Whether places that are free are about to be taken here: the reader need not."""
        if not self.active:
            return False
        if self._share is None:
            return self._in_flight > 0 or self._batcher.has_queued
        # Nobody else waits for what has not left yet: it may never do.
        return self._in_flight > 0 or time.monotonic() < self._next_report_by

    async def wait_change(self) -> None:
        """Wait until that may have changed."""
        self._changed.clear()
        if self._in_flight or self._share is None:
            await self._changed.wait()
            return
        left_s = max(self._next_report_by - time.monotonic(), 0.0)
        timer = asyncio.get_running_loop().call_later(left_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def attach(self, answered: asyncio.Future[list[RecordOutcome]], calls: int) -> Sequence[Record]:
        """The batcher's flush hook: the record that fetches the next messages, if any."""
        if not self.active:
            return ()
        self._changed.set()
        reservation = self._reserve_slots(calls)
        if reservation is None:
            return ()
        token, record = self._claimer.fetch_record(
            reservation.count, self._last_id, self._options_by_task()
        )
        self._in_flight += 1
        self._admission.track(self._receive(answered, token, reservation))
        return (record,)

    def _reserve_slots(self, calls: int) -> Reservation | None:
        slots = self._slots
        free = slots.free - slots.urgent  # whoever has messages in hand comes first
        if free <= 0 or slots.interrupted or not self._admission.accepting:
            return None
        count = min(-(-free // calls), self._count)
        return slots.reserve(count) if self._share is None else self._share.try_reserve(count)

    def _options_by_task(self) -> Mapping[str, int | str]:
        if self._options_version is not self._limits.version:
            self._options_version = self._limits.version
            left_alone = dict.fromkeys(self._limits.tasks, DO_NOT_BEGIN)
            self._options = {**self._max_attempts, **left_alone}
        return self._options

    async def _receive(
        self, answered: asyncio.Future[list[RecordOutcome]], token: str, reservation: Reservation
    ) -> None:
        try:
            outcome = await self._outcome(answered)
            if outcome is None:
                return
            entries: Any = outcome.value
            messages = [parse_message(entry) for entry in entries]
            if len(messages) < reservation.count:
                self.active = False  # reads begin it again, when they find more
            self._record(messages)
            if self._share is not None:
                self._share.charge_prefetched(len(messages))
            jobs, left_alone = await self._claimer.accept_prefetched(token, messages, outcome.more)
            await self._admission.start(jobs, reservation)
            if left_alone:
                self._admission.offer(left_alone)
        finally:
            reservation.release()

    async def _outcome(self, answered: asyncio.Future[list[RecordOutcome]]) -> Reply | None:
        try:
            [outcome] = await answered
        except (StoreUnavailable, CorruptKey) as error:
            self._on_failure(str(error))
            return None
        finally:
            self._in_flight -= 1
            self._changed.set()
        if isinstance(outcome, CorruptKey):
            self._on_failure(str(outcome))
            return None
        return outcome

    def _on_failure(self, why: str) -> None:
        self.deactivate()
        log.warning("messages could not be taken along: %s; they are read", why)
