"""Group commit: many tasks hand in records, one script call carries them together.

A flush leaves at the end of the loop's tick while fewer than two are under way; whatever comes
in meanwhile waits and leaves together. There is no timer, so an idle system adds no latency.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import JobKeys
from common.errors import CorruptKey, NotReplicated, StoreUnavailable
from common.patience import LATE_S, SECOND_CHANCE_S
from common.scripts import CORE, Record, Reply, Script, is_elsewhere, is_passing, pack, unpack
from common.wire import Commander

log = logging.getLogger(__name__)

#: Calls under way at once: more would only split batches, fewer would leave Redis idle while
#: we work on its replies.
MAX_CALLS = 2
#: Bounds how long one script call keeps Redis from others.
MAX_RECORDS = 64
MAX_BYTES = 1 << 20
#: Below this, splitting costs more than it gains.
SMALLEST_SHARE = 8
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
#: How long after a fault whoever has the choice goes elsewhere.
WARY_S = 1.0

Outcome = Reply | CorruptKey
#: Asked at the leaving of a call, with the future of its outcomes and the number of calls that
#: leave now: what else should come along?
Rider = Callable[["asyncio.Future[list[Outcome]]", int], Sequence[Record]]


class _Entry(NamedTuple):
    """Records that one caller handed in together, and where it waits for their outcomes."""

    records: Sequence[Record]
    answered: asyncio.Future[list[Outcome]]


_Batch = tuple[_Entry, ...]


class Coalescer:
    """Sends records in batches and answers each caller's future.

    `patience_s` is how long a record is tried again while Redis is away; None means for ever,
    which is right for a worker that has a result in its hands.
    """

    def __init__(
        self,
        wire: Commander,
        keys: JobKeys,
        patience_s: float | None = None,
        script: Script = CORE,
    ) -> None:
        self._wire = wire
        self._keys = keys
        self._patience_s = patience_s
        self._script = script
        self._waiting: deque[_Entry] = deque()
        self._calls = 0
        self._under_way: dict[int, _Batch] = {}
        self._repeating: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._closed = False
        #: Who has been waiting since when, oldest first, where patience has an end.
        self._impatient: deque[tuple[float, asyncio.Future[list[Outcome]]]] = deque()
        self._giving_up: asyncio.TimerHandle | None = None
        self._giving_up_at = 0.0
        self._had_second_chance = False
        self._last_fault = "no answer in time"
        #: Who may add to calls that leave anyway.
        self.rider: Rider | None = None
        #: When a call last met a fault, unless one has got through since.
        self._fault_at: float | None = None

    @property
    def well(self) -> bool:
        """Whether there is no reason to expect a fault: the last call got through."""
        return self._fault_at is None

    @property
    def worth_trying(self) -> bool:
        """Whether the last fault was a while ago, and nobody is finding out about it."""
        fault_at = self._fault_at
        busy = self._repeating or self._under_way
        return fault_at is not None and not busy and time.monotonic() - fault_at > WARY_S

    @property
    def has_waiting(self) -> bool:
        """Whether records wait for a call to come back."""
        return bool(self._waiting)

    def beware(self) -> None:
        """Somebody met a fault on another way to the same server."""
        self._fault_at = time.monotonic()

    async def call(self, record: Record) -> Reply:
        """Run one operation; raises what befell it."""
        outcome = (await self.submit((record,)))[0]
        if isinstance(outcome, CorruptKey):
            raise outcome
        return outcome

    def submit(self, records: Sequence[Record]) -> asyncio.Future[list[Outcome]]:
        """Hand in records for the next flush; the future has their outcomes, one for one."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[list[Outcome]] = loop.create_future()
        if self._closed:
            answered.set_exception(StoreUnavailable("closed"))
            return answered
        self._waiting.append(_Entry(records, answered))
        if self._patience_s is not None:
            self._impatient.append((loop.time() + self._patience_s, answered))
            if self._giving_up is None:
                self._give_up_after(self._patience_s)
        if not self._scheduled and self._calls < MAX_CALLS:
            self._scheduled = True
            loop.call_soon(self._flush)
        return answered

    async def close(self) -> None:
        """Give up on what is still unanswered, for good."""
        self._closed = True
        if self._giving_up is not None:
            self._giving_up.cancel()
        repeating = list(self._repeating)
        for task in repeating:
            task.cancel()
        await asyncio.gather(*repeating, return_exceptions=True)
        for batch in (*self._under_way.values(), tuple(self._waiting)):
            _fail(batch, StoreUnavailable("closed"))
        self._under_way.clear()
        self._waiting.clear()

    def _give_up(self) -> None:
        """One timer for all, since all have the same patience: the oldest decides when."""
        now, waiting = asyncio.get_running_loop().time(), self._impatient
        stalled = now - self._giving_up_at > LATE_S
        if stalled and not self._had_second_chance:
            self._had_second_chance = True
            self._give_up_after(SECOND_CHANCE_S)
            return
        self._had_second_chance = False
        while waiting and (waiting[0][0] <= now or waiting[0][1].done()):
            _, answered = waiting.popleft()
            if not answered.done():
                self._fault_at = time.monotonic()
                answered.set_exception(StoreUnavailable(self._last_fault))
                answered.exception()  # a caller that left is not to be called forgetful
        self._giving_up = None
        if waiting:
            self._give_up_after(waiting[0][0] - now)

    def _give_up_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._giving_up_at = loop.time() + seconds
        self._giving_up = loop.call_later(seconds, self._give_up)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and self._calls < MAX_CALLS and not self._closed:
            batch = self._take()
            if self.rider is not None and self.well:
                batch += self._riding(self.rider)
            self._calls += 1
            if self._wire.ready:
                self._send(batch)
            else:
                self._repeat(batch)

    def _riding(self, rider: Rider) -> _Batch:
        answered: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        records = rider(answered, MAX_CALLS - self._calls if self._waiting else 1)
        return (_Entry(records, answered),) if records else ()

    def _send(self, batch: _Batch) -> None:
        try:
            args = pack(self._keys, _records(batch))
            self._wire.send(("EVALSHA", self._script.sha, *args), partial(self._replied, batch))
        except Exception:  # something in it cannot be sent: find out what, one by one
            self._repeat(batch)
        else:
            self._under_way[id(batch)] = batch

    def _take(self) -> _Batch:
        # Shared out over the calls: Redis works on one half while we work on the other.
        share = -(-len(self._waiting) // (MAX_CALLS - self._calls))
        limit = min(max(share, SMALLEST_SHARE), MAX_RECORDS)
        batch: list[_Entry] = []
        count = size = 0
        while self._waiting and count < limit and size < MAX_BYTES:
            entry = self._waiting.popleft()
            batch.append(entry)
            count += len(entry.records)
            size += sum(record.size for record in entry.records)
        return tuple(batch)

    def _replied(self, batch: _Batch, reply: Any) -> None:
        """The good way in one step; anything else goes to `_send_patiently`."""
        self._under_way.pop(id(batch), None)
        if self._closed:
            return
        if isinstance(reply, NotReplicated):
            self._fault_at = time.monotonic()
            _fail(batch, reply)
            self._ended()
            return
        again, fault = (batch, "") if isinstance(reply, Exception) else _answer(batch, reply)
        if again:
            self._repeat(again, fault)
        else:
            self._fault_at = None
            self._ended()

    def _ended(self) -> None:
        self._calls -= 1
        if self._waiting:
            self._flush()

    def _repeat(self, batch: _Batch, fault: str = "") -> None:
        task = asyncio.ensure_future(self._send_patiently(batch, fault))
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)

    async def _send_patiently(self, batch: _Batch, refused: str) -> None:
        """Deliver a batch through trouble: connect, load the script, wait out passing faults.

        `refused` is what a record was refused with, where that is why we are here.
        """
        give_up = None if self._patience_s is None else time.monotonic() + self._patience_s
        backoff_s = FIRST_BACKOFF_S
        try:
            while batch := _still_wanted(batch):
                if is_elsewhere(refused):  # the script ran, on a master that is none any more
                    await self._wire.aclose()
                refused = ""
                try:
                    batch, refused = _answer(batch, await self._evaluate(batch))
                    fault: Exception = StoreUnavailable("Redis refuses writes for now")
                except TRANSIENT_ERRORS as error:
                    fault = error
                except ResponseError as error:
                    if not is_passing(str(error)):
                        raise
                    fault = error
                if not batch:
                    self._fault_at = None
                    return
                self._last_fault, self._fault_at = str(fault), time.monotonic()
                if give_up is not None and time.monotonic() + backoff_s > give_up:
                    raise StoreUnavailable(str(fault)) from fault
                log.warning("redis: %s; %d operations to be repeated", fault, len(batch))
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        except asyncio.CancelledError:
            _fail(batch, StoreUnavailable("closed"))
            raise
        except StoreUnavailable as error:
            _fail(batch, error)
        except Exception as error:
            if len(batch) > 1:  # one entry must not take its neighbours with it
                for entry in batch:
                    self._calls += 1
                    self._repeat((entry,))
            else:
                _fail(batch, CorruptKey(str(error)))
        finally:
            self._ended()

    async def _evaluate(self, batch: _Batch) -> list[list[bytes | int]]:
        args = pack(self._keys, _records(batch), again=True)
        try:
            reply = await self._wire.execute_command("EVALSHA", self._script.sha, *args)
        except NoScriptError:  # SCRIPT FLUSH, a restart, or the first call ever
            reply = await self._wire.execute_command("EVAL", self._script.source, *args)
        return reply  # type: ignore[no-any-return]


def _records(batch: Iterable[_Entry]) -> Iterable[Record]:
    return (record for entry in batch for record in entry.records)


def _still_wanted(batch: _Batch) -> _Batch:
    """Without what takes new messages for somebody who has left."""
    return tuple(
        entry
        for entry in batch
        if not entry.answered.cancelled() or not any(record.repeated for record in entry.records)
    )


def _answer(batch: _Batch, raw_replies: list[list[bytes | int]]) -> tuple[_Batch, str]:
    """Hand out the outcomes; returns what a passing fault refused, to be sent again whole, and
    that fault."""
    replies = iter(raw_replies)
    again: list[_Entry] = []
    fault = ""
    for entry in batch:
        outcomes = [unpack(next(replies)) for _ in entry.records]
        faults = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
        if faults:
            again.append(entry)
            fault = str(faults[0])
        elif not entry.answered.done():
            entry.answered.set_result(outcomes)  # type: ignore[arg-type]
    return tuple(again), fault


def _fail(batch: Iterable[_Entry], error: Exception) -> None:
    for entry in batch:
        if not entry.answered.done():
            entry.answered.set_exception(error)
            entry.answered.exception()  # a caller that left is not to be called forgetful
