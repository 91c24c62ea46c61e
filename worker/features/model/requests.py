"""Answers and vectors of a model server; imported by the first job that wants some."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from common.aio import cancel
from common.contracts.workers import ModelState
from common.text import plural
from worker.errors import JobError
from worker.execution.context import JobContext
from worker.features.model.availability import ModelMonitor, display_name
from worker.features.model.completion import PartialCompletion, StreamingRequest, request_body
from worker.features.model.endpoint import Endpoint
from worker.features.model.errors import (
    ModelAnswerInvalid,
    ModelBroken,
    ModelConnectTimeout,
    ModelFailed,
    ModelRefused,
    ModelTooSlow,
    TotalTimeout,
)
from worker.features.model.timeouts import ModelTimeouts, Stopwatch, TimeoutTimer
from worker.features.model.types import ChatRequest, Completion, ModelCounters, Sink, Usage
from worker.features.model.wire import embeddings
from worker.features.model.wire.http import ModelHttpClient, RetryableFailure

#: Seconds before each further try. A server that is started again is away for longer than this;
#: then jobs wait, which costs them nothing.
RETRY_DELAYS_S = (0.1, 0.4)
#: A wait that a busy server may ask for without the job giving up its place.
MOST_INLINE_WAIT_S = 5.0

AttemptFunction = Callable[[], Awaitable[None]]


async def retry_request(
    attempt: AttemptFunction,
    watch: ModelMonitor,
    task: str = "",
    remaining_s: Callable[[], float | None] = lambda: None,
) -> None:
    """Run `attempt` until it returns; raises what becomes of the job where it never does.

    It raises Hiccup only where it may be run again.
    """
    hiccups: list[RetryableFailure] = []
    while True:
        try:
            return await attempt()
        except RetryableFailure as hiccup:
            hiccups.append(hiccup)
        pause_s = _retry_delay_s(hiccups)
        left_s = remaining_s()
        if pause_s is None or (left_s is not None and pause_s >= left_s):
            raise await _final_error(hiccups, watch, task)
        await asyncio.sleep(pause_s)


def _retry_delay_s(hiccups: list[RetryableFailure]) -> float | None:
    """How long to wait before the next try; None for no further one."""
    last = hiccups[-1]
    if last.loading or last.slow or len(hiccups) > len(RETRY_DELAYS_S):
        return None
    pause_s = RETRY_DELAYS_S[len(hiccups) - 1]
    if last.retry_after_s is None:
        return pause_s
    return max(last.retry_after_s, pause_s) if last.retry_after_s <= MOST_INLINE_WAIT_S else None


async def _final_error(hiccups: list[RetryableFailure], watch: ModelMonitor, task: str) -> JobError:
    """The error that stands for all of them."""
    last, words = hiccups[-1], str(hiccups[-1])
    if last.loading:
        watch.loading(words)
        return watch.unavailable_error(task, words)
    if not last.reached:
        watch.mark_unreachable(words)
    if any(hiccup.broke for hiccup in hiccups):
        # It went down with this request in its hands. Should the request be the reason, it must
        # not bring it down for ever: this attempt counts.
        return ModelFailed(words, retry_after_s=watch.retry_after_s(task))
    if last.slow:
        words = f"{words} (MODEL_CONNECT_TIMEOUT_S)"
        return ModelConnectTimeout(words, retry_after_s=watch.retry_after_s(task))
    if not last.reached:
        return watch.unavailable_error(task, words)
    if last.busy:
        watch.record_failure(words)  # should it stay so, nobody asks it for a while, and jobs wait
        after_s = max(last.retry_after_s or 0.0, watch.retry_after_s(task))
        error = watch.unavailable_error(task, words)
        error.retry_after_s = after_s
        return error
    if await watch.probe() is not ModelState.READY:
        return watch.unavailable_error(task)
    return ModelFailed(words, retry_after_s=last.retry_after_s)


#: Refusals that may mean a member of ours that the server does not know.
_BAD_REQUEST = frozenset({400, 422})
#: What says something about the server's health.
_FAILURES = (ModelFailed, ModelBroken, ModelTooSlow, ModelAnswerInvalid)


class _PendingCompletion:
    """One answer on its way, however often it had to be asked for."""

    def __init__(self, context: JobContext, request: ChatRequest, sink: Sink, watch: Stopwatch):
        self.context = context
        self.request = request
        self.sink = sink
        self.stopwatch = watch
        self.partial = PartialCompletion("")


class ModelRequester:
    """Asks the server that a `EventSubscriber` keeps an eye on."""

    def __init__(
        self,
        http: ModelHttpClient,
        watch: ModelMonitor,
        budgets: ModelTimeouts,
        numbers: ModelCounters,
    ) -> None:
        self._http = http
        self._monitor = watch
        self._timeouts = budgets
        self._counters = numbers
        #: Servers that do not want our optional members, and whether that is known already.
        self._plain: dict[str, bool] = {}

    # -- answers -----------------------------------------------------------------------------------

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """One answer, handed to `sink` piece by piece as it comes.

        Where the job is canceled meanwhile it is what there was of it until then. Whatever ends
        this call closes the connection, which stops the server's work. Raises the errors of
        `worker.features.model.errors`.
        """
        watch = Stopwatch(self._timeouts)
        talk = _PendingCompletion(context, request, sink, watch)
        alarm = TimeoutTimer(watch)
        asking = asyncio.ensure_future(self._ask(talk))
        canceled = asyncio.ensure_future(context.wait_for_cancel())
        try:
            stopped = await self._follow(watch, asking, canceled, alarm.expired)
        except _FAILURES as error:
            if not isinstance(error, TotalTimeout):  # a long answer is no failure
                self._monitor.record_failure(str(error))
            self._counters.record_failure()
            raise
        finally:
            alarm.close()
            await cancel(asking, canceled)
        completion = talk.partial.completion(watch, canceled=stopped)
        if not stopped:
            self._monitor.record_success()
        if talk.partial.started or not stopped:
            self._counters.answered(completion)
        return completion

    @staticmethod
    async def _follow(
        watch: Stopwatch,
        asking: asyncio.Task[None],
        canceled: asyncio.Task[None],
        rang: asyncio.Future[ModelTooSlow],
    ) -> bool:
        """Wait for the end of an answer; True where the job was canceled before it."""
        ends: set[asyncio.Future[Any]] = {asking, canceled, rang}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
            return False
        if canceled.done():
            return True
        if watch.answer_ended:
            return False
        raise rang.result()

    async def _ask(self, talk: _PendingCompletion) -> None:
        context = talk.context
        await self._monitor.endpoint(context.task)  # who cannot be served does not queue up
        async with self._monitor.semaphore:
            talk.stopwatch.start()
            await retry_request(
                lambda: self._try(talk), self._monitor, context.task, lambda: context.remaining_s
            )

    async def _try(self, talk: _PendingCompletion) -> None:
        endpoint = await self._monitor.endpoint(talk.context.task)
        plain = self._plain.get(endpoint.base)
        try:
            await self._try_once(endpoint, talk, extras=plain is not True)
        except ModelRefused as refused:
            if plain is not None or refused.status not in _BAD_REQUEST or talk.partial.started:
                raise
            await self._try_once(endpoint, talk, extras=False)
            self._plain[endpoint.base] = True
        else:
            self._plain.setdefault(endpoint.base, False)

    async def _try_once(
        self, endpoint: Endpoint, talk: _PendingCompletion, *, extras: bool
    ) -> None:
        watch, request, trace = self._monitor, talk.request, talk.context.traceparent
        body = request_body(request, watch.model, extras=extras, progress=watch.is_llama_server)
        talk.partial = draft = PartialCompletion(display_name(body.get("model", "")))
        headers = {} if trace is None else {"traceparent": trace}
        try:
            await StreamingRequest(self._http, endpoint, talk.sink, talk.stopwatch).run(
                body, draft, headers
            )
        except RetryableFailure as hiccup:
            if draft.started:
                pieces = plural(draft.pieces, "piece")
                raise ModelBroken(
                    f"the model broke off after {pieces} of its answer: {hiccup}"
                ) from None
            talk.stopwatch.pause()
            raise

    # -- vectors -----------------------------------------------------------------------------------

    async def embeddings(
        self,
        texts: Sequence[str],
        *,
        model: str = "",
        dimensions: int | None = None,
        task: str,
    ) -> tuple[list[list[float]], Usage]:
        """One vector a text, in their order."""
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
