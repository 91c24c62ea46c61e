"""Takes the next messages with a call that leaves anyway, while there are more than can run.

A worker that is behind would otherwise wait in turn for each of three replies: messages, the right
to begin, the end. So what ends some jobs begins others: one round trip for both, and Redis works on
one half of the places while we work on the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from common.coalescer import Coalescer, Outcome
from common.contracts.scripts import LEAVE_ALONE
from common.errors import CorruptKey, StoreUnavailable
from common.scripts import Record
from worker.admission import Admission
from worker.intake import Intake
from worker.limits import TaskLimits
from worker.messages import message
from worker.slots import Reservation, Slots

log = logging.getLogger(__name__)


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
        self._active = False
        self._under_way = 0
        self._changed = asyncio.Event()
        coalescer.rider = self._board

    def begin(self) -> None:
        """There are probably more messages."""
        self._active = True

    def pause(self) -> None:
        """Somebody else is about to read for all places that are free."""
        self._active = False

    @property
    def busy(self) -> bool:
        """Whether places that are free are about to be taken here: the reader need not."""
        return self._active and (self._under_way > 0 or self._coalescer.has_waiting)

    async def wait_change(self) -> None:
        """Wait until that may have changed."""
        self._changed.clear()
        await self._changed.wait()

    def _board(self, answered: asyncio.Future[list[Outcome]], calls: int) -> Sequence[Record]:
        if not self._active:
            return ()
        self._changed.set()
        slots = self._slots
        free = slots.free - slots.wanted  # whoever has messages in hand comes first
        if free <= 0 or slots.interrupted or not self._admission.open:
            return ()
        count = min(-(-free // calls), self._count)
        token, record = self._intake.next(count, self._terms_of_tasks())
        self._under_way += 1
        self._admission.expect(self._arrive(answered, token, count, slots.hold_for(count)))
        return (record,)

    def _terms_of_tasks(self) -> Mapping[str, int | str]:
        if self._terms_version is not self._limits.version:
            self._terms_version = self._limits.version
            left_alone = dict.fromkeys(self._limits.tasks, LEAVE_ALONE)
            self._terms = {**self._own_attempts, **left_alone}
        return self._terms

    async def _arrive(
        self,
        answered: asyncio.Future[list[Outcome]],
        token: str,
        asked: int,
        places: Reservation,
    ) -> None:
        try:
            [outcome] = await answered
        except StoreUnavailable as error:
            self._end(f"{error}")
            places.end()
            return
        except BaseException:
            places.end()
            raise
        finally:
            self._under_way -= 1
            self._changed.set()
        if isinstance(outcome, CorruptKey):
            self._end(str(outcome))
            places.end()
            return
        entries: Any = outcome.value
        messages = [message(entry) for entry in entries]
        if len(messages) < asked:
            self._active = False
        attempts, left_alone = await self._intake.admit_begun(token, messages, outcome.more)
        await self._admission.start(attempts, places)
        if left_alone:
            self._admission.offer(left_alone)

    def _end(self, why: str) -> None:
        self._active = False
        log.warning("messages could not be taken along: %s; they are read", why)
