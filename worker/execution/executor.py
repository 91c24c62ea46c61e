"""Runs an attempt from its claim to its outcome: resolve the handler, run it, report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from sluice.common import codec
from sluice.common.contracts.jobs import CancelStage, DataField, Status
from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey, SluiceError, StoreUnavailable
from sluice.common.jobs.store import JobOutcome, Lease, WorkerIdentity
from sluice.common.observability import logs
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.worker.errors import AttemptLost, JobError
from sluice.worker.execution import attempt_log
from sluice.worker.execution.attempt import Attempt, RunningAttempts, StopReason
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.execution.context import Outbox, ThreadJobContext
from sluice.worker.execution.outcome import (
    NO_HANDLER_OPTIONS,
    NO_REQUEST_OPTIONS,
    AttemptDecision,
    Failure,
    HandlerOptions,
    Outcome,
    RequestOptions,
    Retry,
    Timeout,
    WorkerDefaults,
    choose_timeout,
    decide_failure,
    finish_canceled,
    finish_done,
)
from sluice.worker.execution.protocols import (
    AttemptSlots,
    HandlerResolver,
    JobBackend,
    LeaseManager,
)
from sluice.worker.monitoring.counters import Counters
from sluice.worker.queue.claim import ClaimedJob
from sluice.worker.queue.limits import TaskLimits
from sluice.worker.registry import Handler, OnEndFunction, tool_arguments

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a stopping worker tries to release a job.
RELEASE_TIMEOUT_S = 3.0
#: Seconds between two checks of timeouts of POLLED_TIMEOUT_S and more.
TIMEOUT_POLL_S = 0.25
#: How many cancel requests of jobs that do not run here are remembered.
MOST_PENDING_CANCELS = 1000


_OUTCOMES = {
    Status.DONE.value: Outcome.DONE,
    Status.ERROR.value: Outcome.ERROR,
    Status.CANCELED.value: Outcome.CANCELED,
}


class Executor:
    """Runs attempts, any number at once: the admission decides how many."""

    def __init__(
        self,
        store: JobBackend,
        registry: HandlerResolver,
        leases: LeaseManager,
        worker: WorkerIdentity,
        slots: AttemptSlots,
        defaults: WorkerDefaults,
        defer: Callable[[str, float], None],
        limits: TaskLimits | None = None,
        counters: Counters | None = None,
        on_fault: Callable[[Lease, BaseException], None] | None = None,
        running: RunningAttempts | None = None,
        encode_result: Callable[[object], bytes] = codec.dumps,
    ) -> None:
        self._store = store
        self._queue = store.queue
        self._registry = registry
        self._leases = leases
        self._worker = worker
        self._slots = slots
        self._defaults = defaults
        self._default_timeout = choose_timeout(NO_REQUEST_OPTIONS, NO_HANDLER_OPTIONS, defaults)
        self._defer = defer
        self._limits = limits
        self._counters = Counters() if counters is None else counters
        #: Called with the exception of a handler, while it has its traceback.
        self._on_fault = on_fault
        self._encode_result = encode_result
        self._outbox = Outbox(store, worker)
        self._running = RunningAttempts() if running is None else running
        self._pending_cancels: dict[str, None] = {}
        self._shutting_down = False
        self._poll_timer: asyncio.TimerHandle | None = None

    def cancel(self, job_id: str) -> None:
        """Cancel a job if it runs here."""
        attempt = self._running.get(job_id)
        if attempt is not None:
            attempt.cancel()
        elif job_id:  # it may be about to run here: the message can overtake the reply to BEGIN
            self._pending_cancels[job_id] = None
            if len(self._pending_cancels) > MOST_PENDING_CANCELS:
                del self._pending_cancels[next(iter(self._pending_cancels))]

    @property
    def message_ids(self) -> set[str]:
        """The message ids of the running jobs."""
        return {attempt.lease.message_id for attempt in self._running.values()}

    @property
    def running(self) -> Collection[Attempt]:
        """The running attempts, in the order they began."""
        return self._running.values()

    @property
    def events_emitted(self) -> int:
        """How many events handlers have emitted."""
        return self._outbox.emitted

    def begin_shutdown(self) -> None:
        """From now on the cancellation of a task means shutdown, and releases its job."""
        self._shutting_down = True

    async def release_remaining(self) -> None:
        """Release the jobs whose handlers did not end when their tasks were canceled."""
        rest = list(self._running.values())
        for attempt in rest:
            if attempt.task is not None:
                about = logs.job_extra(attempt.lease.job_id)
                log.error("handler ignores its cancellation; job released", extra=about)
            attempt.abandoned = True
        await asyncio.gather(*(self._release(attempt) for attempt in rest))

    def run(self, job: ClaimedJob) -> Coroutine[Any, Any, Outcome]:
        """Run an attempt to its outcome. The coroutine never raises: one job must not harm another.

        The attempt is registered at once, not in the coroutine, because the task may be canceled
        before its first step.
        """
        attempt = Attempt(job, self._outbox, self._defaults.cancel_grace_s, self._on_unresponsive)
        self._running[attempt.lease.job_id] = attempt
        lease = attempt.lease
        attempt.queued_s = self._counters.record_start(job.task, lease.message_id, lease.attempt)
        if self._poll_timer is None:
            self._poll_timer = attempt.loop.call_later(TIMEOUT_POLL_S, self._poll_timeouts)
        return self._run(attempt)

    async def _run(self, attempt: Attempt) -> Outcome:
        attempt.task = asyncio.current_task()
        attempt_log.start(attempt, self._queue, self._worker)
        if self._pending_cancels and attempt.lease.job_id in self._pending_cancels:
            attempt.cancel()
        try:
            decision = await self._perform(attempt)
            if attempt.abandoned:
                log.warning("handler ended after its job; its result is dropped")
                return Outcome.LOST
            self._slots.mark_finishing(attempt.task)
            return await self._conclude(attempt, decision)
        except AttemptLost:
            log.warning("attempt %d was lost; its result is dropped", attempt.lease.attempt)
            attempt_log.record_unfinished(attempt, Outcome.LOST)
            return Outcome.LOST
        except asyncio.CancelledError:
            return await self._release(attempt)
        except StoreUnavailable as error:
            log.error("attempt %d stays pending: %s", attempt.lease.attempt, error)
            return Outcome.LEFT
        except Exception:
            log.exception(
                "attempt %d stays pending after an unexpected error", attempt.lease.attempt
            )
            return Outcome.LEFT
        finally:
            self._close(attempt)

    def _poll_timeouts(self) -> None:
        """Stop attempts whose time is up; repeated while attempts run."""
        self._poll_timer = None
        for attempt in list(self._running.values()):
            attempt.check_timeout()
        if self._running:
            loop = asyncio.get_running_loop()
            self._poll_timer = loop.call_later(TIMEOUT_POLL_S, self._poll_timeouts)

    # -- the pipeline ----------------------------------------------------------------------

    async def _perform(self, attempt: Attempt) -> AttemptDecision:
        """Run the handler under its lease; every way it can end becomes a decision."""
        try:
            handler, payload = self._registry.resolve_job(attempt.job)
            attempt.handler_options, attempt.on_end = handler.options, handler.on_end
            argument = handler.parse(payload)
            value = await self._call(handler, attempt, argument)
            if attempt.stop_requested:
                return self._stopped(attempt, value)
            return finish_done(attempt.context, value, self._encode_result)
        except JobError as error:
            self._raise_if_interrupted(attempt, error)
            if attempt.stop_requested:
                return self._stopped(attempt)
            self._report_fault(attempt, error)
            return self._failed(attempt, Failure.from_error(error))
        except (AttemptLost, StoreUnavailable):
            raise
        except asyncio.CancelledError:
            if attempt.stop_requested:
                return self._stopped(attempt)
            if self._shutting_down:
                raise
            return self._failed(attempt, Failure(JobError.kind, "the handler canceled itself"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit and exceptions of a handler's libraries
            self._raise_if_interrupted(attempt, error)
            if attempt.stop_requested:
                return self._stopped(attempt)
            self._report_fault(attempt, error)
            failure = Failure.from_error(error)
            log.error("handler failed: %s", failure.message, exc_info=True)
            return self._failed(attempt, failure)
        finally:
            attempt.mark_handler_ended()
            crashpoints.reach(CrashPoint.AFTER_HANDLER)

    def _raise_if_interrupted(self, attempt: Attempt, error: BaseException) -> None:
        """A failure during shutdown does not count against the job: it is released instead."""
        if self._shutting_down and not attempt.stop_requested:
            raise asyncio.CancelledError from error

    async def _call(self, handler: Handler, attempt: Attempt, argument: Any) -> Any:
        attempt.start_timeout(self._timeout(attempt.job.request, handler.options))
        self._leases.hold(attempt.lease, attempt.lose_threadsafe, attempt.cancel_threadsafe)
        if handler.is_async:
            return await handler.function(attempt.context, argument)
        return await call_in_thread(handler.function, ThreadJobContext(attempt.context), argument)

    def _timeout(self, request: RequestOptions, options: HandlerOptions) -> Timeout:
        if request.options.timeout_s is None and options.timeout_s is None:
            return self._default_timeout
        return choose_timeout(request, options, self._defaults)

    def _report_fault(self, attempt: Attempt, error: BaseException) -> None:
        if self._on_fault is not None:
            self._on_fault(attempt.lease, error)

    def _failed(self, attempt: Attempt, failure: Failure) -> AttemptDecision:
        return decide_failure(
            attempt.context, failure, attempt.job.request, attempt.handler_options, self._defaults
        )

    def _stopped(self, attempt: Attempt, value: Any = None) -> AttemptDecision:
        """The decision for a handler that was stopped, however it ended."""
        if attempt.stop_reason is StopReason.LOST:
            raise AttemptLost
        if attempt.stop_reason is StopReason.TIMEOUT:
            return self._failed(attempt, Failure.from_timeout(attempt.timeout))
        stage = CancelStage.COOPERATIVE if attempt.stop_reason is None else CancelStage.FORCED
        return finish_canceled(attempt.context, stage, value)

    async def _conclude(self, attempt: Attempt, decision: AttemptDecision) -> Outcome:
        """Report a decision. If that fails the job stays pending, until a worker claims it."""
        ran_s = attempt.context.elapsed_s
        try:
            try:
                outcome = await self._report(attempt, decision)
            except JobError as error:  # the backend cannot store this result
                decision = self._failed(attempt, Failure.from_error(error))
                outcome = await self._report(attempt, decision)
        except (CorruptKey, StoreUnavailable) as error:
            log.error("attempt %d could not be finished: %s", attempt.lease.attempt, error)
            attempt_log.record_unfinished(attempt, Outcome.LEFT)
            return Outcome.LEFT
        dead = isinstance(decision, JobOutcome) and decision.dead_letter
        self._counters.record_end(
            outcome, attempt.job.task, attempt.queued_s, attempt.lease.attempt, ran_s, dead
        )
        attempt_log.log_outcome(attempt, decision, outcome)
        if attempt.on_end is not None and outcome in (Outcome.ERROR, Outcome.CANCELED):
            await self._call_on_end(attempt, attempt.on_end, outcome, decision.error)
        return outcome

    async def _call_on_end(
        self, attempt: Attempt, on_end: OnEndFunction, outcome: Outcome, error: bytes
    ) -> None:
        """Report the end of the job to its internal tool. If that fails, its reconciler does."""
        args = tool_arguments(codec.parse_payload(attempt.job.payload))
        try:
            await on_end(attempt.context, args, outcome, error)
        except SluiceError as fault:
            log.warning("end of the job not processed yet: %s", fault)
        except Exception:
            log.exception("end of the job not processed yet")

    async def _report(self, attempt: Attempt, decision: AttemptDecision) -> Outcome:
        first, unsent = await self._despite_cancellation(attempt, attempt.events.take_unsent)
        if isinstance(decision, Retry):
            return await self._retry(attempt, decision, first, unsent)
        report = partial(self._store.finish, attempt.lease, self._worker, decision, first, unsent)
        answer = await self._despite_cancellation(attempt, report)
        crashpoints.reach(CrashPoint.AFTER_FINISH)
        if answer is Answer.LOST or answer is Answer.GONE:
            raise AttemptLost
        return _OUTCOMES[decision.status]

    async def _retry(self, attempt: Attempt, decision: Retry, first: int, unsent: Any) -> Outcome:
        crashpoints.reach(CrashPoint.BEFORE_RETRY)
        report = partial(
            self._store.retry, attempt.lease, self._worker, *decision, first=first, events=unsent
        )
        answer = await self._despite_cancellation(attempt, report)
        crashpoints.reach(CrashPoint.AFTER_RETRY)
        if answer is Answer.CANCELED:
            return Outcome.CANCELED
        if answer is not Answer.OK:
            raise AttemptLost
        self._defer(attempt.lease.message_id, decision.delay_ms / 1000)
        return Outcome.POSTPONED if decision.free else Outcome.RETRY

    async def _despite_cancellation(self, attempt: Attempt, step: Callable[[], Awaitable[T]]) -> T:
        """Run a repeatable step to its end. A handler may have canceled its own task before; that
        must not stop the report."""
        while True:
            try:
                return await step()
            except asyncio.CancelledError:
                if attempt.stop_reason is StopReason.LOST:
                    raise AttemptLost from None
                if self._shutting_down:
                    raise

    # -- other ends ------------------------------------------------------------------------

    async def release_unstarted(self, job: ClaimedJob) -> None:
        """Release a job whose slot was given to another job while it was fetched."""
        attempt = Attempt(job, self._outbox, self._defaults.cancel_grace_s, self._on_unresponsive)
        await self._release(attempt, "no slot is free any more")
        self._close(attempt)

    def _on_unresponsive(self, attempt: Attempt) -> None:
        """A handler did not end when it was stopped: end its job and free its slot."""
        about = logs.job_extra(attempt.lease.job_id)
        log.error("handler ignores its cancellation; its job ends without it", extra=about)
        attempt.abandoned = True
        attempt.mark_handler_ended()
        attempt.events.lost = True  # refuses further events; unsent ones go with the report
        self._slots.replace(attempt.task, self._finish_abandoned(attempt))

    async def _finish_abandoned(self, attempt: Attempt) -> None:
        attempt_log.set_log_context(attempt)
        try:
            await self._conclude(attempt, self._stopped(attempt))
        except (AttemptLost, asyncio.CancelledError):
            log.warning("attempt %d was lost", attempt.lease.attempt)
        finally:
            self._close(attempt)

    async def _release(self, attempt: Attempt, why: str = "the worker is stopping") -> Outcome:
        """Let another worker take the job at once. The attempt does not count."""
        lease = attempt.lease
        data = codec.dumps(
            {
                DataField.ATTEMPT: lease.attempt,
                DataField.MS: attempt.context.elapsed_ms,
            }
        )
        try:
            crashpoints.reach(CrashPoint.BEFORE_RELEASE)
            answer = await asyncio.wait_for(self._send_release(attempt, data), RELEASE_TIMEOUT_S)
            crashpoints.reach(CrashPoint.AFTER_RELEASE)
        except (
            CorruptKey,
            StoreUnavailable,
            asyncio.TimeoutError,
            asyncio.CancelledError,
        ) as error:
            log.warning(
                "attempt %d stays pending until its lease expires: %r", lease.attempt, error
            )
            return Outcome.LEFT
        if answer is not Answer.OK:
            return Outcome.LOST
        log.info("attempt %d released: %s", lease.attempt, why)
        attempt_log.record_unfinished(attempt, Outcome.RELEASED)
        self._counters.for_task(attempt.job.task).released += 1
        return Outcome.RELEASED

    async def _send_release(self, attempt: Attempt, data: bytes) -> Answer:
        first, unsent = await attempt.events.take_unsent()
        return await self._store.release(attempt.lease, self._worker, data, first, unsent)

    def _close(self, attempt: Attempt) -> None:
        """End the attempt, even if its handler still runs."""
        if attempt.closed:
            return
        attempt.closed = True
        attempt_log.end_span(attempt)
        self._leases.drop(attempt.lease)
        if self._limits:
            self._limits.release(attempt.job.limit_key, attempt.lease.message_id)
        if self._running.get(attempt.lease.job_id) is attempt:
            del self._running[attempt.lease.job_id]
