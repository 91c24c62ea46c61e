"""The way of one attempt: resolve, run, finish. It ends in one of a few outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from common import codec, logs
from common.contracts.jobs import Status, Step
from common.contracts.scripts import Answer
from common.errors import CorruptKey, StoreUnavailable
from common.store import Ending, JobStore, WorkerIdentity
from worker.context import EventBuffer, JobContext, Outbox, ThreadJobContext
from worker.errors import AttemptLost, InvalidResult, JobError
from worker.intake import Attempt
from worker.lease import LeaseKeeper
from worker.registry import Handler, Registry
from worker.threads import call_in_thread

log = logging.getLogger(__name__)

_DONE, _DONE_STEP = Status.DONE.value, Step.WORKER_DONE.value
_ERROR, _ERROR_STEP = Status.ERROR.value, Step.WORKER_ERROR.value

T = TypeVar("T")

#: Longer error messages are cut: they travel in events and answers.
MAX_ERROR_CHARS = 2000


class Outcome(Enum):
    """What became of an attempt."""

    DONE = "done"
    ERROR = "error"
    #: Taken over, ended or expired while we ran it: our result was refused.
    LOST = "lost"
    #: Shutdown or Redis trouble: still pending, to be taken up again.
    LEFT = "left pending"


class Run:
    """One attempt on its way through the pipeline."""

    __slots__ = ("context", "events", "lease", "loop", "lost", "task")

    def __init__(self, attempt: Attempt, outbox: Outbox) -> None:
        self.lease = attempt.lease
        self.events = EventBuffer(attempt.lease, outbox)
        self.context = JobContext(attempt.lease, attempt.task, self.events)
        self.loop = asyncio.get_running_loop()
        self.task = asyncio.current_task(self.loop)
        #: Set before the attempt's task is canceled because its lease is gone.
        self.lost = False

    def lose(self) -> None:
        """The lease is gone; called from the keeper's thread."""
        self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.lost = self.events.lost = True
        if self.task is not None:
            self.task.cancel()


class Executor:
    """Runs attempts, any number at once; the reader decides how many."""

    def __init__(
        self,
        store: JobStore,
        registry: Registry,
        leases: LeaseKeeper,
        worker: WorkerIdentity,
        on_performed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._leases = leases
        self._worker = worker
        self._on_performed = on_performed
        self._outbox = Outbox(store, worker)
        self._abandoned = False

    def abandon(self) -> None:
        """From now on a canceled task means shutdown: its message stays pending."""
        self._abandoned = True

    async def run(self, attempt: Attempt) -> Outcome:
        """Take an attempt to its outcome. Never raises: one job must not harm another."""
        lease = attempt.lease
        logs.job_id.set(lease.job_id)
        run = Run(attempt, self._outbox)
        try:
            ending = await self._perform(run, attempt.payload)
            self._on_performed()
            return await self._finish(run, ending)
        except AttemptLost:
            log.warning("attempt %d was lost; its result is dropped", lease.attempt)
            return Outcome.LOST
        except (CorruptKey, StoreUnavailable) as error:
            log.error("attempt %d could not be finished: %s", lease.attempt, error)
        except asyncio.CancelledError:
            log.info("attempt %d stays pending: the worker is stopping", lease.attempt)
        except Exception:
            log.exception("attempt %d stays pending after an unexpected fault", lease.attempt)
        finally:
            self._leases.drop(lease)
        return Outcome.LEFT

    async def _perform(self, run: Run, payload: bytes) -> Ending:
        """Run the handler under its lease; every way it can end becomes an Ending."""
        try:
            handler = self._registry.resolve(run.context.task)
            argument = handler.parse(codec.payload_object(payload))
            return _done(run.context, await self._call(handler, run, argument))
        except JobError as error:
            return _failed(run.context, error.kind, _text_of(error))
        except (AttemptLost, StoreUnavailable):
            raise
        except asyncio.CancelledError:
            if run.lost:
                raise AttemptLost from None
            if self._abandoned:
                raise
            return _failed(run.context, JobError.kind, "the handler canceled itself")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, or whatever a handler's libraries invent
            log.error("handler failed: %s", _text_of(error), exc_info=True)
            return _failed(run.context, type(error).__name__, _text_of(error))

    async def _call(self, handler: Handler, run: Run, argument: Any) -> Any:
        self._leases.hold(run.lease, run.lose)
        if handler.is_async:
            return await handler.function(run.context, argument)
        return await call_in_thread(handler.function, ThreadJobContext(run.context), argument)

    async def _finish(self, run: Run, ending: Ending) -> Outcome:
        first, unsent = await self._despite_cancellation(run, run.events.take)
        finish = partial(self._store.finish, run.lease, self._worker, ending, first, unsent)
        answer = await self._despite_cancellation(run, finish)
        if answer is Answer.LOST or answer is Answer.GONE:
            raise AttemptLost
        return Outcome.DONE if ending.status == _DONE else Outcome.ERROR

    async def _despite_cancellation(self, run: Run, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step that may be repeated; a handler's late cancel of its own task is no end."""
        while True:
            try:
                return await step()
            except asyncio.CancelledError:
                if run.lost:
                    raise AttemptLost from None
                if self._abandoned:
                    raise


def _done(context: JobContext, value: object) -> Ending:
    try:
        result = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResult(f"the handler returned no JSON value: {error}") from None
    ms = value.get("ms") if isinstance(value, dict) else None
    data = codec.dumps({"ms": ms if isinstance(ms, int) else context.elapsed_ms})
    return Ending(_DONE, _DONE_STEP, data, result=result)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of its own making
        return "(its text cannot be shown)"


def _failed(context: JobContext, kind: str, message: str) -> Ending:
    message = message[:MAX_ERROR_CHARS].encode(errors="replace").decode()
    error = {"kind": kind, "message": message, "attempt": context.attempt}
    data = codec.dumps({**error, "ms": context.elapsed_ms})
    return Ending(_ERROR, _ERROR_STEP, data, error=codec.dumps(error))
