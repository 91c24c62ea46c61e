"""Requests answers and embeddings from a model server; imported by the first job that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sluice.common.aio import cancel
from sluice.common.contracts.workers import ModelState
from sluice.common.text import plural
from sluice.worker.errors import JobError
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.availability import ModelMonitor, display_name
from sluice.worker.features.model.completion import (
    PartialCompletion,
    StreamingRequest,
    request_body,
)
from sluice.worker.features.model.endpoint import Endpoint
from sluice.worker.features.model.errors import (
    ModelAnswerInvalid,
    ModelBroken,
    ModelConnectTimeout,
    ModelFailed,
    ModelRefused,
    ModelTooSlow,
    TotalTimeout,
)
from sluice.worker.features.model.timeouts import ModelTimeouts, Stopwatch, TimeoutTimer
from sluice.worker.features.model.types import ChatRequest, Completion, ModelCounters, Sink, Usage
from sluice.worker.features.model.wire import embeddings
from sluice.worker.features.model.wire.http import ModelHttpClient, RetryableFailure

#: Seconds before each retry. A server that restarts takes longer than this; then the job waits,
#: without using up an attempt.
RETRY_DELAYS_S = (0.1, 0.4)
#: Longest Retry-After of a busy server that is waited for while the job keeps its slot.
MOST_INLINE_WAIT_S = 5.0

AttemptFunction = Callable[[], Awaitable[None]]


async def retry_request(
    attempt: AttemptFunction,
    monitor: ModelMonitor,
    task: str = "",
    remaining_s: Callable[[], float | None] = lambda: None,
) -> None:
    """Run `attempt` until it succeeds; raises the error for the job if it does not.

    `attempt` raises RetryableFailure only if it may be repeated.
    """
    failures: list[RetryableFailure] = []
    while True:
        try:
            return await attempt()
        except RetryableFailure as failure:
            failures.append(failure)
        pause_s = _retry_delay_s(failures)
        left_s = remaining_s()
        if pause_s is None or (left_s is not None and pause_s >= left_s):
            raise await _final_error(failures, monitor, task)
        await asyncio.sleep(pause_s)


def _retry_delay_s(failures: list[RetryableFailure]) -> float | None:
    """Seconds before the next try; None if there is none."""
    last = failures[-1]
    if last.loading or last.slow or len(failures) > len(RETRY_DELAYS_S):
        return None
    pause_s = RETRY_DELAYS_S[len(failures) - 1]
    if last.retry_after_s is None:
        return pause_s
    return max(last.retry_after_s, pause_s) if last.retry_after_s <= MOST_INLINE_WAIT_S else None


async def _final_error(
    failures: list[RetryableFailure], monitor: ModelMonitor, task: str
) -> JobError:
    """The job's error after all tries."""
    last, message = failures[-1], str(failures[-1])
    if last.loading:
        monitor.loading(message)
        return monitor.unavailable_error(task, message)
    if not last.reached:
        monitor.mark_unreachable(message)
    if all(failure.invalid for failure in failures) and await monitor.probe() is ModelState.READY:
        # The server has not crashed: it sends such answers.
        return ModelAnswerInvalid(f"{message}; is it an OpenAI-compatible server?")
    if any(failure.broke for failure in failures):
        # The server went down while it processed this request. If the request is the cause, it must
        # not be retried for ever: this attempt counts.
        return ModelFailed(message, retry_after_s=monitor.retry_after_s(task))
    if last.slow:
        message = f"{message} (MODEL_CONNECT_TIMEOUT_S)"
        return ModelConnectTimeout(message, retry_after_s=monitor.retry_after_s(task))
    if not last.reached:
        return monitor.unavailable_error(task, message)
    if last.busy:
        monitor.record_failure(message)  # repeated failures open the circuit; jobs then wait
        after_s = max(last.retry_after_s or 0.0, monitor.retry_after_s(task))
        error = monitor.unavailable_error(task, message)
        error.retry_after_s = after_s
        return error
    if await monitor.probe() is not ModelState.READY:
        return monitor.unavailable_error(task)
    return ModelFailed(message, retry_after_s=last.retry_after_s)


#: Statuses that may mean an unknown optional member in the request.
_BAD_REQUEST = frozenset({400, 422})
#: Errors that count as failures of the server.
_FAILURES = (ModelFailed, ModelBroken, ModelTooSlow, ModelAnswerInvalid)


class _PendingCompletion:
    """One answer in progress, over all its tries."""

    def __init__(self, context: JobContext, request: ChatRequest, sink: Sink, stopwatch: Stopwatch):
        self.context = context
        self.request = request
        self.sink = sink
        self.stopwatch = stopwatch
        self.partial = PartialCompletion("")


class ModelRequester:
    """Sends requests to the server that a `ModelMonitor` watches."""

    def __init__(
        self,
        http: ModelHttpClient,
        monitor: ModelMonitor,
        budgets: ModelTimeouts,
        numbers: ModelCounters,
    ) -> None:
        self._http = http
        self._monitor = monitor
        self._timeouts = budgets
        self._counters = numbers
        #: For each server, whether it rejects the optional members; missing if not yet known.
        self._plain: dict[str, bool] = {}

    # -- answers -----------------------------------------------------------------------------------

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """Stream one answer into `sink`.

        If the job is canceled meanwhile, returns the part received so far. However this call ends,
        it closes the connection, which stops the server's work. Raises the errors of
        `sluice.worker.features.model.errors`.
        """
        stopwatch = Stopwatch(self._timeouts)
        pending = _PendingCompletion(context, request, sink, stopwatch)
        timer = TimeoutTimer(stopwatch)
        request_task = asyncio.ensure_future(self._ask(pending))
        canceled = asyncio.ensure_future(context.wait_for_cancel())
        try:
            stopped = await self._follow(stopwatch, request_task, canceled, timer.expired)
        except _FAILURES as error:
            if not isinstance(error, TotalTimeout):  # a long answer is not a failure of the server
                self._monitor.record_failure(str(error))
            self._counters.record_failure()
            raise
        finally:
            timer.close()
            await cancel(request_task, canceled)
        completion = pending.partial.completion(stopwatch, canceled=stopped)
        if not stopped:
            self._monitor.record_success()
        if pending.partial.started or not stopped:
            self._counters.answered(completion)
        return completion

    @staticmethod
    async def _follow(
        stopwatch: Stopwatch,
        request_task: asyncio.Task[None],
        canceled: asyncio.Task[None],
        timed_out: asyncio.Future[ModelTooSlow],
    ) -> bool:
        """Wait for the end of an answer; returns True if the job was canceled first."""
        ends: set[asyncio.Future[Any]] = {request_task, canceled, timed_out}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if request_task.done():
            request_task.result()
            return False
        if canceled.done():
            return True
        if stopwatch.answer_ended:
            return False
        raise timed_out.result()

    async def _ask(self, pending: _PendingCompletion) -> None:
        context = pending.context
        await self._monitor.endpoint(context.task)  # do not queue for a server that is unavailable
        async with self._monitor.semaphore:
            pending.stopwatch.start()
            await retry_request(
                lambda: self._try(pending), self._monitor, context.task, lambda: context.remaining_s
            )

    async def _try(self, pending: _PendingCompletion) -> None:
        endpoint = await self._monitor.endpoint(pending.context.task)
        plain = self._plain.get(endpoint.base)
        try:
            await self._try_once(endpoint, pending, extras=plain is not True)
        except ModelRefused as refused:
            if plain is not None or refused.status not in _BAD_REQUEST or pending.partial.started:
                raise
            await self._try_once(endpoint, pending, extras=False)
            self._plain[endpoint.base] = True
        else:
            self._plain.setdefault(endpoint.base, False)

    async def _try_once(
        self, endpoint: Endpoint, pending: _PendingCompletion, *, extras: bool
    ) -> None:
        monitor, request, trace = self._monitor, pending.request, pending.context.traceparent
        body = request_body(request, monitor.model, extras=extras, progress=monitor.is_llama_server)
        pending.partial = draft = PartialCompletion(display_name(body.get("model", "")))
        headers = {} if trace is None else {"traceparent": trace}
        try:
            await StreamingRequest(self._http, endpoint, pending.sink, pending.stopwatch).run(
                body, draft, headers
            )
        except RetryableFailure as failure:
            if draft.started:
                pieces = plural(draft.pieces, "piece")
                raise ModelBroken(
                    f"the model broke off after {pieces} of its answer: {failure}"
                ) from None
            pending.stopwatch.pause()
            raise

    # -- embeddings -------------------------------------------------------------------------------

    async def embeddings(
        self,
        texts: Sequence[str],
        *,
        model: str = "",
        dimensions: int | None = None,
        task: str,
    ) -> tuple[list[list[float]], Usage]:
        """One vector per text, in order."""
        found: list[tuple[list[list[float]], Usage]] = []

        async def attempt() -> None:
            endpoint = await self._monitor.endpoint(task)
            found.append(
                await embeddings.request_embeddings(
                    self._http,
                    endpoint,
                    model or self._monitor.model,
                    texts,
                    self._timeouts.first_token_s,
                    dimensions,
                )
            )

        await self._monitor.endpoint(task)
        async with self._monitor.semaphore:
            try:
                await retry_request(attempt, self._monitor, task)
            except _FAILURES as error:
                self._monitor.record_failure(str(error))
                self._counters.record_failure()
                raise
        self._monitor.record_success()
        self._counters.embedded(found[-1][1])
        return found[-1]
