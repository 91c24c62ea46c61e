"""Combined finish-and-fetch: while there is a backlog, reports also fetch the next messages.

A worker with a backlog would otherwise wait for three replies in turn: the read, BEGIN and FINISH.
Instead, the call that finishes some jobs also fetches and begins the next ones. Redis works on one
half of the slots while the worker runs the jobs in the other half.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.common.contracts.queue import DO_NOT_BEGIN
from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.redis.batching import RecordOutcome, ScriptBatcher
from sluice.common.redis.scripts import Record, Reply
from sluice.worker.queue.admission import Admission
from sluice.worker.queue.claim import Claimer
from sluice.worker.queue.fair_share import Share
from sluice.worker.queue.limits import TaskLimits
from sluice.worker.queue.messages import Message, parse_message
from sluice.worker.queue.slots import Reservation, Slots

log = logging.getLogger(__name__)

#: With several queues: seconds after a fetch in which the slots of its jobs are left to this queue,
#: because short jobs end within that time and fetch the next ones themselves.
REPORT_S = 0.01


class PiggybackFetch:
    """Attaches a fetch to the calls of the batcher.

    It becomes active when a read returns as many messages as it asked for, and inactive when a
    fetch returns fewer. Messages of limited tasks are fetched without beginning their jobs, because
    Redis does not know the limits of this process.
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
        #: Options by task for the fetch, built for this version of the limits.
        self._options: Mapping[str, int | str] = {}
        self._options_version: object = None
        #: Set if other queues share the slots.
        self._share = share
        #: True if the queue probably has more messages.
        self.active = False
        self._in_flight = 0
        #: Id of the newest message that was delivered, as far as known.
        self._last_id = ""
        #: `time.monotonic()` until which the reports of fetched jobs are expected.
        self._next_report_by = 0.0
        self._changed = asyncio.Event()

    def record_read(self, messages: Sequence[Message], requested: int) -> None:
        """Record the result of a read. There are more messages if it returned all requested."""
        self.active = len(messages) == requested
        self._record(messages)

    def _record(self, messages: Sequence[Message]) -> None:
        if messages:
            self._last_id = messages[-1].id
        self._next_report_by = time.monotonic() + REPORT_S

    def deactivate(self) -> None:
        """Stop fetching until a read returns as many messages as it asked for."""
        self.active = False

    def wake(self) -> None:
        """End the current `wait_change`."""
        self._changed.set()

    @property
    def busy(self) -> bool:
        """True if a fetch is about to fill the free slots, so that the reader need not read."""
        if not self.active:
            return False
        if self._share is None:
            return self._in_flight > 0 or self._batcher.has_queued
        # Other queues wait only for a fetch that was sent: one that is queued may never be.
        return self._in_flight > 0 or time.monotonic() < self._next_report_by

    async def wait_change(self) -> None:
        """Wait until `busy` may have changed."""
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
        free = slots.free - slots.urgent  # messages that were read before come first
        if free <= 0 or slots.interrupted or not self._admission.accepting:
            return None
        count = min(-(-free // calls), self._count)
        return slots.reserve(count) if self._share is None else self._share.try_reserve(count)

    def _options_by_task(self) -> Mapping[str, int | str]:
        if self._options_version is not self._limits.version:
            self._options_version = self._limits.version
            limited = dict.fromkeys(self._limits.tasks, DO_NOT_BEGIN)
            self._options = {**self._max_attempts, **limited}
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
                self.deactivate()
            self._record(messages)
            if self._share is not None:
                self._share.charge_prefetched(len(messages))
            jobs, not_begun = await self._claimer.accept_prefetched(token, messages, outcome.more)
            await self._admission.start(jobs, reservation)
            if not_begun:
                self._admission.offer(not_begun)
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
        log.warning("prefetch failed: %s; messages are read the usual way", why)
