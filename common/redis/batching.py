"""Group commit: many tasks submit records, and one script call carries them together.

A call is sent at the end of the loop's tick while fewer than MAX_CALLS are in progress. Records
submitted meanwhile wait and share the next call. There is no timer, so an idle system adds no
latency.
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

from redis.exceptions import ResponseError

from sluice.common.aio import STALL_GRACE_S, STALL_THRESHOLD_S
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import CorruptKey, NotReplicated, StoreUnavailable
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import (
    BatchScript,
    Record,
    Reply,
    is_transient,
    is_wrong_server,
    run_packed,
    unpack,
)
from sluice.common.text import plural

log = logging.getLogger(__name__)

#: Calls in progress at once. More would only split batches, fewer would leave Redis idle while this
#: process works on its replies.
MAX_CALLS = 2
#: Bounds of one call, because Redis serves no other client while it runs.
MAX_RECORDS = 64
MAX_BYTES = 1 << 20
#: Batches of fewer records are not split: it would cost more than it gains.
MIN_BATCH_SHARE = 8
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
#: Seconds after an error before `should_probe` suggests a retry.
UNHEALTHY_S = 1.0

RecordOutcome = Reply | CorruptKey
#: Called before a call is sent. Returns records that it carries in addition. The arguments are the
#: future of their outcomes, and the number of calls that are about to be sent.
FlushHook = Callable[["asyncio.Future[list[RecordOutcome]]", int], Sequence[Record]]


class _Entry(NamedTuple):
    """Records that one caller submitted together, and the future of their outcomes."""

    records: Sequence[Record]
    answered: asyncio.Future[list[RecordOutcome]]


_Batch = tuple[_Entry, ...]


class ScriptBatcher:
    """Sends records in batches and resolves the future of each caller.

    `retry_for_s` is how long records are retried while Redis is unavailable. None means for ever,
    which is right for a worker that has the result of a job to store.
    """

    def __init__(
        self,
        wire: CommandClient,
        keys: JobKeys,
        script: BatchScript,
        retry_for_s: float | None = None,
        on_flush: FlushHook | None = None,
    ) -> None:
        self._wire = wire
        self._keys = keys
        self._retry_for_s = retry_for_s
        self._script = script
        self._waiting: deque[_Entry] = deque()
        self._calls = 0
        self._under_way: dict[int, _Batch] = {}
        self._retries: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._closed = False
        #: Deadlines of the submitted records, earliest first; empty without `retry_for_s`.
        self._deadlines: deque[tuple[float, asyncio.Future[list[RecordOutcome]]]] = deque()
        self._give_up_timer: asyncio.TimerHandle | None = None
        self._give_up_at = 0.0
        self._had_stall_grace = False
        self._last_fault = "no answer in time"
        self._on_flush = on_flush
        #: `time.monotonic()` of the last error; None after a call has succeeded.
        self._fault_at: float | None = None

    @property
    def healthy(self) -> bool:
        """True if the last call succeeded."""
        return self._fault_at is None

    @property
    def should_probe(self) -> bool:
        """True if the last error is older than UNHEALTHY_S and no call is in progress that would
        show whether it persists."""
        fault_at = self._fault_at
        busy = self._retries or self._under_way
        return fault_at is not None and not busy and time.monotonic() - fault_at > UNHEALTHY_S

    @property
    def has_queued(self) -> bool:
        """True if records wait until a call in progress returns."""
        return bool(self._waiting)

    def mark_unhealthy(self) -> None:
        """Record an error that another connection to the same server had."""
        self._fault_at = time.monotonic()

    async def call(self, record: Record) -> Reply:
        """Run one operation; raises StoreUnavailable or CorruptKey."""
        outcome = (await self.submit((record,)))[0]
        if isinstance(outcome, CorruptKey):
            raise outcome
        return outcome

    def submit(self, records: Sequence[Record]) -> asyncio.Future[list[RecordOutcome]]:
        """Submit records for the next call. The future has their outcomes in the same order."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[list[RecordOutcome]] = loop.create_future()
        if self._closed:
            answered.set_exception(StoreUnavailable("closed"))
            return answered
        self._waiting.append(_Entry(records, answered))
        if self._retry_for_s is not None:
            self._deadlines.append((loop.time() + self._retry_for_s, answered))
            if self._give_up_timer is None:
                self._give_up_after(self._retry_for_s)
        if not self._scheduled and self._calls < MAX_CALLS:
            self._scheduled = True
            loop.call_soon(self._flush)
        return answered

    async def close(self) -> None:
        """Fail all records without a reply. Further records fail at once."""
        self._closed = True
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
        retries = list(self._retries)
        for task in retries:
            task.cancel()
        await asyncio.gather(*retries, return_exceptions=True)
        for batch in (*self._under_way.values(), tuple(self._waiting)):
            _fail(batch, StoreUnavailable("closed"))
        self._under_way.clear()
        self._waiting.clear()

    def _give_up(self) -> None:
        """Fail the records whose deadline is over. One timer for all: deadlines are in order."""
        now, waiting = asyncio.get_running_loop().time(), self._deadlines
        stalled = now - self._give_up_at > STALL_THRESHOLD_S
        if stalled and not self._had_stall_grace:
            self._had_stall_grace = True
            self._give_up_after(STALL_GRACE_S)
            return
        self._had_stall_grace = False
        while waiting and (waiting[0][0] <= now or waiting[0][1].done()):
            _, answered = waiting.popleft()
            if not answered.done():
                self._fault_at = time.monotonic()
                answered.set_exception(StoreUnavailable(self._last_fault))
                answered.exception()  # marked as retrieved, in case the caller was canceled
        self._give_up_timer = None
        if waiting:
            self._give_up_after(waiting[0][0] - now)

    def _give_up_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._give_up_at = loop.time() + seconds
        self._give_up_timer = loop.call_later(seconds, self._give_up)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and self._calls < MAX_CALLS and not self._closed:
            batch = self._take()
            if self._on_flush is not None and self.healthy:
                batch += self._attach_extra(self._on_flush)
            self._calls += 1
            if self._wire.ready:
                self._send(batch)
            else:
                self._repeat(batch)

    def _attach_extra(self, on_flush: FlushHook) -> _Batch:
        answered: asyncio.Future[list[RecordOutcome]] = asyncio.get_running_loop().create_future()
        records = on_flush(answered, MAX_CALLS - self._calls if self._waiting else 1)
        return (_Entry(records, answered),) if records else ()

    def _send(self, batch: _Batch) -> None:
        try:
            args = self._script.pack(self._keys, _records(batch))
            self._wire.send(("EVALSHA", self._script.sha, *args), partial(self._on_reply, batch))
        except Exception:  # a record cannot be encoded: `_repeat` finds out which
            self._repeat(batch)
        else:
            self._under_way[id(batch)] = batch

    def _take(self) -> _Batch:
        # Split over the calls: Redis runs one half while this process works on the other.
        share = -(-len(self._waiting) // (MAX_CALLS - self._calls))
        limit = min(max(share, MIN_BATCH_SHARE), MAX_RECORDS)
        batch: list[_Entry] = []
        count = size = 0
        while self._waiting and count < limit and size < MAX_BYTES:
            entry = self._waiting.popleft()
            batch.append(entry)
            count += len(entry.records)
            size += sum(record.size for record in entry.records)
        return tuple(batch)

    def _on_reply(self, batch: _Batch, reply: Any) -> None:
        """Resolve a batch. After an error it is sent again by `_send_with_retries`."""
        self._under_way.pop(id(batch), None)
        if self._closed:
            return
        if isinstance(reply, NotReplicated):
            self._fault_at = time.monotonic()
            _fail(batch, reply)
            self._call_ended()
            return
        again, fault = (batch, "") if isinstance(reply, Exception) else _resolve(batch, reply)
        if again:
            self._repeat(again, fault)
        else:
            self._fault_at = None
            self._call_ended()

    def _call_ended(self) -> None:
        self._calls -= 1
        if self._waiting:
            self._flush()

    def _repeat(self, batch: _Batch, fault: str = "") -> None:
        task = asyncio.ensure_future(self._send_with_retries(batch, fault))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _send_with_retries(self, batch: _Batch, refused: str) -> None:
        """Send a batch until it succeeds: connect, load the script, retry after transient errors.

        `refused` is the error with which a record was refused, if that is the reason for the retry.
        """
        give_up = None if self._retry_for_s is None else time.monotonic() + self._retry_for_s
        backoff_s = FIRST_BACKOFF_S
        try:
            while batch := _drop_abandoned(batch):
                if is_wrong_server(refused):  # the script ran on a server that is no longer master
                    await self._wire.aclose()
                refused = ""
                try:
                    batch, refused = _resolve(batch, await self._run_script(batch))
                    fault: Exception = StoreUnavailable(refused)
                except TRANSIENT_ERRORS as error:
                    fault = error
                except ResponseError as error:
                    if not is_transient(str(error)):
                        raise
                    fault = error
                if not batch:
                    self._fault_at = None
                    return
                self._last_fault, self._fault_at = str(fault), time.monotonic()
                if give_up is not None and time.monotonic() + backoff_s > give_up:
                    raise StoreUnavailable(str(fault)) from fault
                log.warning("redis: %s; retrying %s", fault, plural(len(batch), "operation"))
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        except asyncio.CancelledError:
            _fail(batch, StoreUnavailable("closed"))
            raise
        except StoreUnavailable as error:
            _fail(batch, error)
        except Exception as error:
            if len(batch) > 1:  # one entry must not make the others fail
                for entry in batch:
                    self._calls += 1
                    self._repeat((entry,))
            else:
                _fail(batch, CorruptKey(str(error)))
        finally:
            self._call_ended()

    async def _run_script(self, batch: _Batch) -> list[list[bytes | int]]:
        args = self._script.pack(self._keys, _records(batch), again=True)
        return await run_packed(self._wire, self._script, args)  # type: ignore[no-any-return]


def _records(batch: Iterable[_Entry]) -> Iterable[Record]:
    return (record for entry in batch for record in entry.records)


def _drop_abandoned(batch: _Batch) -> _Batch:
    """The batch without fetches whose caller was canceled: no task would run their messages."""
    return tuple(
        entry
        for entry in batch
        if not entry.answered.cancelled() or not any(record.repeated for record in entry.records)
    )


def _resolve(batch: _Batch, raw_replies: list[list[bytes | int]]) -> tuple[_Batch, str]:
    """Resolve the futures of a batch. Returns the entries that a transient error refused, which
    must be sent again as a whole, and that error."""
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
            entry.answered.exception()  # marked as retrieved, in case the caller was canceled
