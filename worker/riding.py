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

from common.coalescer import Coalescer, Outcome
from common.contracts.scripts import LEAVE_ALONE
from common.errors import CorruptKey, StoreUnavailable
from common.scripts import Record, Reply
from worker.admission import Admission
from worker.intake import Intake
from worker.limits import TaskLimits
from worker.messages import Message, message
from worker.slots import Reservation, Slots
from worker.turns import Turn

log = logging.getLogger(__name__)

#: Where several queues want the same places, those of short jobs are left to this one so long.
REPORT_S = 0.01


class Riding:
    """Begins when a read has brought all that was asked for, and ends when there is no more.

    Messages of limited tasks are taken and go the usual way: which of them may begin is not for
    Redis to say.
    """

    def __init__(
        self,
        coalescer: Coalescer,
        slots: Slots,
        limits: TaskLimits,
        intake: Intake,
        admission: Admission,
        count: int,
        own_attempts: Mapping[str, int],
        turn: Turn | None = None,
    ) -> None:
        self._coalescer = coalescer
        self._slots = slots
        self._limits = limits
        self._intake = intake
        self._admission = admission
        self._count = count
        self._own_attempts = own_attempts
        #: What there is to say of tasks, as long as the limits have this version.
        self._terms: Mapping[str, int | str] = {}
        self._terms_version: object = None
        #: Where other queues want the same places.
        self._turn = turn
        #: Whether there are probably more messages.
        self.active = False
        self._under_way = 0
        #: Of the newest message that is known to have been handed out.
        self._last_id = ""
        #: Until then, jobs that came along have probably ended, and others come with their reports.
        self._next_report_by = 0.0
        self._changed = asyncio.Event()
        coalescer.rider = self._board

    def found(self, messages: Sequence[Message], asked: int) -> None:
        """Somebody has read messages: there are more if they were as many as asked for."""
        self.active = len(messages) == asked
        self._noted(messages)

    def _noted(self, messages: Sequence[Message]) -> None:
        if messages:
            self._last_id = messages[-1].id
        self._next_report_by = time.monotonic() + REPORT_S

    def wake(self) -> None:
        """Let nobody wait for a change here."""
        self._changed.set()

    @property
    def busy(self) -> bool:
        """Whether places that are free are about to be taken here: the reader need not."""
        if not self.active:
            return False
        if self._turn is None:
            return self._under_way > 0 or self._coalescer.has_waiting
        # Nobody else waits for what has not left yet: it may never do.
        return self._under_way > 0 or time.monotonic() < self._next_report_by

    async def wait_change(self) -> None:
        """Wait until that may have changed."""
        self._changed.clear()
        if self._under_way or self._turn is None:
            await self._changed.wait()
            return
        left_s = max(self._next_report_by - time.monotonic(), 0.0)
        timer = asyncio.get_running_loop().call_later(left_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _board(self, answered: asyncio.Future[list[Outcome]], calls: int) -> Sequence[Record]:
        if not self.active:
            return ()
        self._changed.set()
        places = self._places(calls)
        if places is None:
            return ()
        token, record = self._intake.next(places.count, self._last_id, self._terms_of_tasks())
        self._under_way += 1
        self._admission.expect(self._arrive(answered, token, places))
        return (record,)

    def _places(self, calls: int) -> Reservation | None:
        slots = self._slots
        free = slots.free - slots.wanted  # whoever has messages in hand comes first
        if free <= 0 or slots.interrupted or not self._admission.open:
            return None
        count = min(-(-free // calls), self._count)
        return slots.hold_for(count) if self._turn is None else self._turn.ride(count)

    def _terms_of_tasks(self) -> Mapping[str, int | str]:
        if self._terms_version is not self._limits.version:
            self._terms_version = self._limits.version
            left_alone = dict.fromkeys(self._limits.tasks, LEAVE_ALONE)
            self._terms = {**self._own_attempts, **left_alone}
        return self._terms

    async def _arrive(
        self, answered: asyncio.Future[list[Outcome]], token: str, places: Reservation
    ) -> None:
        try:
            outcome = await self._outcome(answered)
            if outcome is None:
                return
            entries: Any = outcome.value
            messages = [message(entry) for entry in entries]
            if len(messages) < places.count:
                self.active = False  # reads begin it again, when they find more
            self._noted(messages)
            if self._turn is not None:
                self._turn.arrived(len(messages))
            attempts, left_alone = await self._intake.admit_begun(token, messages, outcome.more)
            await self._admission.start(attempts, places)
            if left_alone:
                self._admission.offer(left_alone)
        finally:
            places.end()

    async def _outcome(self, answered: asyncio.Future[list[Outcome]]) -> Reply | None:
        try:
            [outcome] = await answered
        except (StoreUnavailable, CorruptKey) as error:
            self._end(str(error))
            return None
        finally:
            self._under_way -= 1
            self._changed.set()
        if isinstance(outcome, CorruptKey):
            self._end(str(outcome))
            return None
        return outcome

    def _end(self, why: str) -> None:
        self.active = False
        log.warning("messages could not be taken along: %s; they are read", why)
