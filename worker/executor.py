"""The way of one attempt: resolve, run, report. It ends in one of a few outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from common import codec, crashpoints, logs
from common.contracts.jobs import CancelStage, DataField, Status
from common.contracts.scripts import Answer
from common.crashpoints import CrashPoint
from common.errors import CorruptKey, SluiceError, StoreUnavailable
from common.store import Ending, Lease, WorkerIdentity
from worker import story, terms
from worker.context import Outbox, ThreadJobContext
from worker.errors import AttemptLost, JobError
from worker.intake import Attempt
from worker.limits import TaskLimits
from worker.outcome import Outcome
from worker.registry import EndedFunction, Handler, arguments_in
from worker.reports import Handlers, Leases, Places, Reports
from worker.run import Run, Stop
from worker.tally import Tally
from worker.terms import (
    NO_HANDLER_TERMS,
    NO_WISHES,
    Budget,
    HandlerTerms,
    Wishes,
    WorkerTerms,
)
from worker.threads import call_in_thread
from worker.verdict import Failure, Retry, Verdict, canceled, done, failed

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a stopping worker tries to hand a job back.
RELEASE_TIMEOUT_S = 3.0
#: How often long budgets are looked at.
WATCH_EVERY_S = 0.25
#: Cancellations remembered of jobs that do not run here.
MOST_HEARD = 1000


_OUTCOMES = {
    Status.DONE.value: Outcome.DONE,
    Status.ERROR.value: Outcome.ERROR,
    Status.CANCELED.value: Outcome.CANCELED,
}


class Executor:
    """Runs attempts, any number at once; the admission decides how many."""

    def __init__(
        self,
        store: Reports,
        registry: Handlers,
        leases: Leases,
        worker: WorkerIdentity,
        slots: Places,
        worker_terms: WorkerTerms,
        defer: Callable[[str, float], None],
        limits: TaskLimits | None = None,
        tally: Tally | None = None,
        on_fault: Callable[[Lease, BaseException], None] | None = None,
    ) -> None:
        self._store = store
        self._queue = store.queue
        self._registry = registry
        self._leases = leases
        self._worker = worker
        self._slots = slots
        self._terms = worker_terms
        self._usual_budget = terms.budget(NO_WISHES, NO_HANDLER_TERMS, worker_terms)
        self._defer = defer
        self._limits = limits
        self._tally = Tally() if tally is None else tally
        #: Who wants to see what handlers raise, as long as its traceback is there.
        self._on_fault = on_fault
        self._outbox = Outbox(store, worker)
        self._running: dict[str, Run] = {}
        self._heard: dict[str, None] = {}
        self._abandoned = False
        self._watching: asyncio.TimerHandle | None = None

    def cancel(self, job_id: str) -> None:
        """Somebody wants a job canceled; nothing happens if it does not run here."""
        run = self._running.get(job_id)
        if run is not None:
            run.cancel()
        elif job_id:  # BEGIN's reply and this message travel apart: it may be about to run here
            self._heard[job_id] = None
            if len(self._heard) > MOST_HEARD:
                del self._heard[next(iter(self._heard))]

    @property
    def message_ids(self) -> set[str]:
        """The messages of the jobs that run."""
        return {run.lease.message_id for run in self._running.values()}

    @property
    def running(self) -> Collection[Run]:
        """The attempts that run, in the order they began."""
        return self._running.values()

    @property
    def events_emitted(self) -> int:
        """How many events handlers have emitted."""
        return self._outbox.emitted

    def abandon(self) -> None:
        """From now on a canceled task means shutdown: its job is handed back."""
        self._abandoned = True

    async def release_rest(self) -> None:
        """Hand back what would not even end when its task was canceled."""
        rest = list(self._running.values())
        for run in rest:
            if run.task is not None:
                about = logs.about(run.lease.job_id)
                log.error("the job ignores its cancellation; handed back", extra=about)
            run.left_behind = True
        await asyncio.gather(*(self._release(run) for run in rest))

    def run(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        """Take an attempt to its outcome. Never raises: one job must not harm another.

        The attempt is known from now on, even if its task is canceled before its first step.
        """
        run = Run(attempt, self._outbox, self._terms.cancel_grace_s, self._leave_behind)
        self._running[run.lease.job_id] = run
        lease = run.lease
        run.queued_s = self._tally.started(attempt.task, lease.message_id, lease.attempt)
        if self._watching is None:
            self._watching = run.loop.call_later(WATCH_EVERY_S, self._watch)
        return self._run(run)

    async def _run(self, run: Run) -> Outcome:
        run.task = asyncio.current_task()
        story.begin(run, self._queue, self._worker)
        if self._heard and run.lease.job_id in self._heard:
            run.cancel()
        try:
            verdict = await self._perform(run)
            if run.left_behind:
                log.warning("the handler ended at last; its job had ended without it")
                return Outcome.LOST
            self._slots.leave(run.task)
            return await self._conclude(run, verdict)
        except AttemptLost:
            log.warning("attempt %d was lost; its result is dropped", run.lease.attempt)
            story.left(run, Outcome.LOST)
            return Outcome.LOST
        except asyncio.CancelledError:
            return await self._release(run)
        except StoreUnavailable as error:
            log.error("attempt %d stays pending: %s", run.lease.attempt, error)
            return Outcome.LEFT
        except Exception:
            log.exception("attempt %d stays pending after an unexpected fault", run.lease.attempt)
            return Outcome.LEFT
        finally:
            self._forget(run)

    def _watch(self) -> None:
        """Look whose time is up, for as long as anybody runs."""
        self._watching = None
        for run in list(self._running.values()):
            run.check_time()
        if self._running:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(WATCH_EVERY_S, self._watch)

    # -- the pipeline ----------------------------------------------------------------------

    async def _perform(self, run: Run) -> Verdict:
        """Run the handler under its lease; every way it can end becomes a verdict."""
        try:
            handler, payload = self._registry.open(run.attempt)
            run.handler, run.on_end = handler.terms, handler.ended
            argument = handler.parse(payload)
            value = await self._call(handler, run, argument)
            if run.stop is not None or run.cancel_requested:
                return self._stopped(run, value)
            return done(run.context, value)
        except JobError as error:
            self._raise_if_interrupted(run, error)
            if run.stop is not None or run.cancel_requested:
                return self._stopped(run)
            self._tell_fault(run, error)
            return self._failed(run, Failure.of(error))
        except (AttemptLost, StoreUnavailable):
            raise
        except asyncio.CancelledError:
            if run.stop is not None or run.cancel_requested:
                return self._stopped(run)
            if self._abandoned:
                raise
            return self._failed(run, Failure(JobError.kind, "the handler canceled itself"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, or whatever a handler's libraries invent
            self._raise_if_interrupted(run, error)
            if run.stop is not None or run.cancel_requested:
                return self._stopped(run)
            self._tell_fault(run, error)
            failure = Failure.of(error)
            log.error("handler failed: %s", failure.message, exc_info=True)
            return self._failed(run, failure)
        finally:
            run.end()
            if crashpoints.ARMED:
                crashpoints.reach(CrashPoint.AFTER_HANDLER)

    def _raise_if_interrupted(self, run: Run, error: BaseException) -> None:
        """A handler that fails because the worker is stopping is no fault of the job's."""
        if self._abandoned and run.stop is None and not run.cancel_requested:
            raise asyncio.CancelledError from error

    async def _call(self, handler: Handler, run: Run, argument: Any) -> Any:
        run.start_clock(self._budget(run.attempt.wishes, handler.terms))
        self._leases.hold(run.lease, run.lose, run.cancel_soon)
        if handler.is_async:
            return await handler.function(run.context, argument)
        return await call_in_thread(handler.function, ThreadJobContext(run.context), argument)

    def _budget(self, wishes: Wishes, handler: HandlerTerms) -> Budget:
        if wishes is NO_WISHES and handler is NO_HANDLER_TERMS:
            return self._usual_budget
        return terms.budget(wishes, handler, self._terms)

    def _tell_fault(self, run: Run, error: BaseException) -> None:
        if self._on_fault is not None:
            self._on_fault(run.lease, error)

    def _failed(self, run: Run, failure: Failure) -> Verdict:
        return failed(run.context, failure, run.attempt.wishes, run.handler, self._terms)

    def _stopped(self, run: Run, value: Any = None) -> Verdict:
        """What becomes of a job whose handler was stopped, however it took that."""
        if run.stop is Stop.LOST:
            raise AttemptLost
        if run.stop is Stop.TIMEOUT:
            return self._failed(run, Failure.timed_out(run.budget))
        stage = CancelStage.COOPERATIVE if run.stop is None else CancelStage.FORCED
        return canceled(run.context, stage, value)

    async def _conclude(self, run: Run, verdict: Verdict) -> Outcome:
        """Report a verdict; trouble leaves the job pending, for somebody to take it up."""
        ran_s = run.context.elapsed_s
        try:
            try:
                outcome = await self._report(run, verdict)
            except JobError as error:  # the door cannot take such a result
                verdict = self._failed(run, Failure.of(error))
                outcome = await self._report(run, verdict)
        except (CorruptKey, StoreUnavailable) as error:
            log.error("attempt %d could not be finished: %s", run.lease.attempt, error)
            story.left(run, Outcome.LEFT)
            return Outcome.LEFT
        dead = isinstance(verdict, Ending) and verdict.dead
        self._tally.concluded(
            outcome, run.attempt.task, run.queued_s, run.lease.attempt, ran_s, dead
        )
        story.concluded(run, verdict, outcome)
        if run.on_end is not None and outcome in (Outcome.ERROR, Outcome.CANCELED):
            await self._tell_end(run, run.on_end, outcome, verdict.error)
        return outcome

    async def _tell_end(
        self, run: Run, on_end: EndedFunction, outcome: Outcome, error: bytes
    ) -> None:
        """What comes of the job's end is nobody's fault here: somebody repairs it later."""
        args = arguments_in(codec.payload_object(run.attempt.payload))
        try:
            await on_end(run.context, args, outcome, error)
        except SluiceError as fault:
            log.warning("nobody heard yet how the job ended: %s", fault)
        except Exception:
            log.exception("nobody heard yet how the job ended")

    async def _report(self, run: Run, verdict: Verdict) -> Outcome:
        first, unsent = await self._despite_cancellation(run, run.events.take)
        if isinstance(verdict, Retry):
            return await self._retry(run, verdict, first, unsent)
        report = partial(self._store.finish, run.lease, self._worker, verdict, first, unsent)
        answer = await self._despite_cancellation(run, report)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_FINISH)
        if answer is Answer.LOST or answer is Answer.GONE:
            raise AttemptLost
        return _OUTCOMES[verdict.status]

    async def _retry(self, run: Run, verdict: Retry, first: int, unsent: Any) -> Outcome:
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.BEFORE_RETRY)
        report = partial(
            self._store.retry, run.lease, self._worker, *verdict, first=first, events=unsent
        )
        answer = await self._despite_cancellation(run, report)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_RETRY)
        if answer is Answer.CANCELED:
            return Outcome.CANCELED
        if answer is not Answer.OK:
            raise AttemptLost
        self._defer(run.lease.message_id, verdict.delay_ms / 1000)
        return Outcome.POSTPONED if verdict.free else Outcome.RETRY

    async def _despite_cancellation(self, run: Run, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step that may be repeated; a handler's late cancel of its own task is no end."""
        while True:
            try:
                return await step()
            except asyncio.CancelledError:
                if run.stop is Stop.LOST:
                    raise AttemptLost from None
                if self._abandoned:
                    raise

    # -- other ends ------------------------------------------------------------------------

    async def hand_back(self, attempt: Attempt) -> None:
        """There is no place for an attempt any more: another worker may take the job up."""
        run = Run(attempt, self._outbox, self._terms.cancel_grace_s, self._leave_behind)
        await self._release(run, "its place is gone")
        self._forget(run)

    def _leave_behind(self, run: Run) -> None:
        """A handler ignores that it was stopped: its job ends, and its place is free again."""
        about = logs.about(run.lease.job_id)
        log.error("the handler ignores its cancellation; the job ends without it", extra=about)
        run.left_behind = True
        run.end()
        run.events.lost = True  # it may say nothing more; what it said goes with the report
        self._slots.replace(run.task, self._end_without_handler(run))

    async def _end_without_handler(self, run: Run) -> None:
        story.name(run)
        try:
            await self._conclude(run, self._stopped(run))
        except (AttemptLost, asyncio.CancelledError):
            log.warning("attempt %d was lost", run.lease.attempt)
        finally:
            self._forget(run)

    async def _release(self, run: Run, why: str = "the worker is stopping") -> Outcome:
        """Another worker may take the job up, at no cost to the job."""
        lease = run.lease
        data = codec.dumps(
            {
                DataField.ATTEMPT.value: lease.attempt,
                DataField.MS.value: run.context.elapsed_ms,
            }
        )
        try:
            if crashpoints.ARMED:
                crashpoints.reach(CrashPoint.BEFORE_RELEASE)
            answer = await asyncio.wait_for(self._hand_back(run, data), RELEASE_TIMEOUT_S)
            if crashpoints.ARMED:
                crashpoints.reach(CrashPoint.AFTER_RELEASE)
        except (
            CorruptKey,
            StoreUnavailable,
            asyncio.TimeoutError,
            asyncio.CancelledError,
        ) as error:
            log.warning("attempt %d stays pending until its lease ends: %r", lease.attempt, error)
            return Outcome.LEFT
        if answer is not Answer.OK:
            return Outcome.LOST
        log.info("attempt %d handed back: %s", lease.attempt, why)
        story.left(run, Outcome.RELEASED)
        self._tally.of(run.attempt.task).released += 1
        return Outcome.RELEASED

    async def _hand_back(self, run: Run, data: bytes) -> Answer:
        first, unsent = await run.events.take()
        return await self._store.release(run.lease, self._worker, data, first, unsent)

    def _forget(self, run: Run) -> None:
        """The attempt is over, whether its handler is or not."""
        if run.over:
            return
        run.over = True
        story.end(run)
        self._leases.drop(run.lease)
        if self._limits:
            self._limits.leave(run.attempt.kind, run.lease.message_id)
        if self._running.get(run.lease.job_id) is run:
            del self._running[run.lease.job_id]
