"""The context that a handler receives: its job, its deadline, events and checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import EventType, Step
from sluice.common.contracts.models import HandlerEventType, ProgressField
from sluice.common.contracts.queue import Answer
from sluice.common.errors import SluiceError
from sluice.common.jobs.store import Fence, PendingEvent
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.worker.errors import AttemptLost
from sluice.worker.execution.checkpoints import Checkpoints

if TYPE_CHECKING:
    from sluice.common.jobs.options import JobOptions
    from sluice.common.jobs.store import Lease, WorkerIdentity
    from sluice.worker.execution.protocols import JobBackend

log = logging.getLogger(__name__)

#: Unsent events from which on `emit` waits for Redis.
MAX_UNSENT_EVENTS = 256
MAX_EVENT_BYTES = 256 * 1024
_PROGRESS = HandlerEventType.PROGRESS
#: Event types that Sluice writes itself; handlers may use only MESSAGE of them.
_RESERVED = frozenset(values_of(EventType)) - {EventType.MESSAGE}


class Outbox:
    """Starts sending events once per tick of the loop, for all attempts of a worker.

    The events of an attempt's last tick are sent as part of FINISH, so the events of a short job
    need no separate call.
    """

    def __init__(self, store: JobBackend, worker: WorkerIdentity) -> None:
        self.store = store
        self.worker = worker
        self._waiting: list[EventBuffer] = []
        #: How many events handlers have emitted so far.
        self.emitted = 0

    def schedule(self, buffer: EventBuffer) -> None:
        """Let `buffer` send at the end of this tick."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(buffer)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for buffer in waiting:
            buffer.start_sending()


class EventBuffer:
    """Unsent events of one attempt: one call at a time, further events wait for the next call."""

    def __init__(self, lease: Lease, outbox: Outbox) -> None:
        self._lease = lease
        self._outbox = outbox
        self._unsent: list[PendingEvent] = []
        self._next_number = 1
        self._sending: asyncio.Task[Any] | None = None
        self.lost = False

    @property
    def full(self) -> bool:
        """True if the next event should wait."""
        return len(self._unsent) >= MAX_UNSENT_EVENTS

    def add(self, event: PendingEvent) -> None:
        """Queue an event; it is sent at the end of this tick of the loop."""
        self._unsent.append(event)
        self._outbox.emitted += 1
        if len(self._unsent) == 1 and self._sending is None:
            self._outbox.schedule(self)

    def start_sending(self) -> None:
        """Send the unsent events, unless a call is in progress."""
        if self._unsent and self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._unsent and not self.lost:
                batch, self._unsent = self._unsent, []
                first, self._next_number = self._next_number, self._next_number + len(batch)
                answer = await self._outbox.store.emit(
                    self._lease, self._outbox.worker, first, batch
                )
                if answer is not Answer.OK:
                    self.lost = True
                crashpoints.reach(CrashPoint.AFTER_EMIT)
        except SluiceError as error:
            log.error("events could not be written: %s", error)
            self.lost = True
        finally:
            self._sending = None

    async def save(self, name: str, value: bytes) -> None:
        """Store a step together with the unsent events: no step without the events before it.

        If the handler is stopped meanwhile, the call is completed nevertheless.
        """
        while self._sending is not None:
            await asyncio.shield(self._sending)
        if self.lost:
            raise AttemptLost
        crashpoints.reach(CrashPoint.BEFORE_SAVE)
        saving = asyncio.get_running_loop().create_task(self._save(name, value))
        self._sending = saving
        fault = await asyncio.shield(saving)
        if fault is not None:
            raise fault

    async def _save(self, name: str, value: bytes) -> Exception | None:
        batch, self._unsent = self._unsent, []
        first, self._next_number = self._next_number, self._next_number + len(batch)
        outbox = self._outbox
        try:
            answer = await outbox.store.save(self._lease, outbox.worker, name, value, first, batch)
            crashpoints.reach(CrashPoint.AFTER_SAVE)
        except SluiceError as error:
            self.lost = True  # whether the events with it were written is unknown
            return error
        finally:
            self._sending = None
            self.start_sending()
        self.lost = self.lost or answer is not Answer.OK
        return AttemptLost() if self.lost else None

    async def saved(self) -> dict[str, bytes]:
        """All steps that attempts of the job have stored."""
        while self._sending is not None:  # perhaps a step
            await asyncio.shield(self._sending)
        found = await self._outbox.store.saved(self._lease)
        if found is None:
            raise AttemptLost
        return found

    async def children(self) -> dict[str, Any]:
        """The results of the child jobs."""
        return await self._outbox.store.children(self._lease)

    @property
    def fence(self) -> Fence:
        return self._outbox.store.fence(self._lease)

    async def wait_for_space(self) -> None:
        """Wait until the buffer is no longer full; raises AttemptLost if the attempt is lost."""
        while self.full and not self.lost:
            self.start_sending()
            if self._sending is not None:
                await asyncio.shield(self._sending)
        if self.lost:
            raise AttemptLost

    async def take_unsent(self) -> tuple[int, list[PendingEvent]]:
        """The unsent events and the number of the first, to be sent with FINISH."""
        if self._sending is not None:
            await asyncio.shield(self._sending)
        unsent, self._unsent = self._unsent, []
        return self._next_number, unsent


class JobContext:
    """One attempt of one job, as its handler sees it.

    Handlers with effects outside Redis should use `job_id` as their idempotency key: a job may run
    again after a crash. Results that are expensive or must not be repeated should be stored with
    `save`.
    """

    #: Tenant of the job, '' if it has none; and the tools that it may use, None for all.
    tenant: str = ""
    tools: frozenset[str] | None = None
    _steps: Checkpoints | None = None
    _percent = 0

    def __init__(self, lease: Lease, task: str, events: EventBuffer) -> None:
        self.job_id = lease.job_id
        self.attempt = lease.attempt
        self.task = task
        #: The attempt's position in the trace of its request, for a `traceparent` header; None if
        #: there is no trace.
        self.traceparent: str | None = None
        self._events = events
        self._started = time.monotonic()
        #: `time.monotonic()` value at which the attempt times out; None for no limit.
        self.deadline: float | None = None
        #: True after a cancel was requested. A handler that checks it can stop in an orderly way,
        #: and its return value is kept. Otherwise it is canceled after the grace period.
        self.cancel_requested = False
        self._cancel_event: asyncio.Event | None = None

    def apply_options(self, options: JobOptions) -> None:
        self.tenant = options.tenant or ""
        self.tools = None if options.tools is None else frozenset(options.tools)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the deadline, in seconds since the start of the attempt."""
        self.deadline = self._started + timeout_s

    def request_cancel(self) -> None:
        self.cancel_requested = True
        if self._cancel_event is not None:
            self._cancel_event.set()

    async def wait_for_cancel(self) -> None:
        """Return as soon as a cancel is requested."""
        if self._cancel_event is None:
            self._cancel_event = asyncio.Event()
        if not self.cancel_requested:
            await self._cancel_event.wait()

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the attempt times out; None for no limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1000)

    async def emit(
        self, type: str, data: object = None, *, step: str = Step.WORKER_HANDLER
    ) -> None:
        """Emit an event to the clients that watch the job.

        Returns at once unless more than MAX_UNSENT_EVENTS wait for Redis.
        """
        event = _encode_event(type, data, step)
        if self._events.full or self._events.lost:
            await self._events.wait_for_space()
        self._events.add(event)

    async def progress(self, percent: int, message: str | None = None) -> None:
        """Emit the progress of the attempt in whole percent, with an optional message.

        Progress never decreases: a lower value than before emits the previous one again.
        """
        percent = self._percent = max(_check_percent(percent), self._percent)
        data: dict[str, object] = {ProgressField.PERCENT: percent}
        if message is not None:
            data[ProgressField.MESSAGE] = message
        await self.emit(_PROGRESS, data)

    async def children(self) -> dict[str, Any]:
        """The results of the child jobs of a BullMQ flow, by key."""
        return await self._events.children()

    async def save(self, name: str, value: Any) -> None:
        """Store a JSON value for later attempts. It is in Redis when this returns.

        Saving a name again replaces its value. Events emitted before are written before the value.
        Raises AttemptLost if this attempt no longer owns the job, and ValueError if the value or
        the number of steps exceeds a limit.
        """
        await self._checkpoints.save(name, value)

    async def saved(self) -> dict[str, Any]:
        """All values that attempts of this job have saved, by name. Read once per attempt."""
        return await self._checkpoints.all()

    @property
    def fence(self) -> Fence:
        """What a script in Redis can check, to refuse writes of an attempt that is not current."""
        return self._events.fence

    @property
    def _checkpoints(self) -> Checkpoints:
        if self._steps is None:
            self._steps = Checkpoints(self._events)
        return self._steps

    def try_emit(self, type: str, data: object = None, *, step: str = Step.WORKER_HANDLER) -> bool:
        """Like `emit` without waiting, for timers; False if the buffer is full and the event was
        not queued."""
        event = _encode_event(type, data, step)
        if self._events.lost:
            raise AttemptLost
        if self._events.full:
            return False
        self._events.add(event)
        return True


class ThreadJobContext:
    """The context of a handler that is not async and runs in a thread. Its methods block."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.job_id = context.job_id
        self.attempt = context.attempt
        self.task = context.task
        self.traceparent = context.traceparent
        self.deadline = context.deadline
        self.tenant = context.tenant
        self.tools = context.tools

    @property
    def fence(self) -> Fence:
        return self._context.fence

    @property
    def cancel_requested(self) -> bool:
        """True after a cancel was requested. A handler that loops should check it."""
        return self._context.cancel_requested

    @property
    def remaining_s(self) -> float | None:
        return self._context.remaining_s

    @property
    def elapsed_ms(self) -> int:
        return self._context.elapsed_ms

    def emit(self, type: str, data: object = None, *, step: str = Step.WORKER_HANDLER) -> None:
        emitting = self._context.emit(type, data, step=step)
        asyncio.run_coroutine_threadsafe(emitting, self._loop).result()

    def progress(self, percent: int, message: str | None = None) -> None:
        emitting = self._context.progress(percent, message)
        asyncio.run_coroutine_threadsafe(emitting, self._loop).result()

    def children(self) -> dict[str, Any]:
        return asyncio.run_coroutine_threadsafe(self._context.children(), self._loop).result()

    def save(self, name: str, value: Any) -> None:
        saving = self._context.save(name, value)
        asyncio.run_coroutine_threadsafe(saving, self._loop).result()

    def saved(self) -> dict[str, Any]:
        return asyncio.run_coroutine_threadsafe(self._context.saved(), self._loop).result()


def _check_percent(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"progress must be a whole number of percent, not {value!r}")
    if not 0 <= value <= 100:
        raise ValueError(f"progress must be 0 to 100 percent, not {value}")
    return value


def _encode_event(type: str, data: object, step: str) -> PendingEvent:
    _check_type(type)
    _check_line(step)
    encoded = codec.dumps({} if data is None else data)
    if len(encoded) > MAX_EVENT_BYTES:
        raise ValueError(f"event data has {len(encoded)} bytes; at most {MAX_EVENT_BYTES}")
    return PendingEvent(type, step, encoded)


@lru_cache(maxsize=1024)
def _check_type(type: str) -> None:
    if type in _RESERVED:
        raise ValueError(f"event type {type!r} is written by Sluice itself")
    _check_line(type)


@lru_cache(maxsize=1024)
def _check_line(text: str) -> None:
    """Types and steps become lines of an SSE stream. Surrogates are not printable either."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} must be a str")
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} must be one line of printable characters")


async def emit_progress(context: JobContext, step: str, done: int, total: int) -> None:
    data = {
        ProgressField.DONE: done,
        ProgressField.TOTAL: total,
        ProgressField.ATTEMPT: context.attempt,
    }
    await context.emit(HandlerEventType.PROGRESS, data, step=step)
