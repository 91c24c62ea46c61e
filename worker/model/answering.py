"""Answers and vectors of a model server; imported by the first job that wants some."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from common.cancellation import cancel
from worker.context import JobContext
from worker.model import embeddings
from worker.model.asking import Asking, body_for
from worker.model.budget import Alarm, Budgets, Stopwatch
from worker.model.draft import Draft
from worker.model.endpoint import Endpoint
from worker.model.errors import (
    ModelAnswerInvalid,
    ModelBroken,
    ModelFailed,
    ModelRefused,
    ModelTooSlow,
    TotalTimeout,
)
from worker.model.http import Hiccup, Http
from worker.model.numbers import Numbers
from worker.model.probe import shown_name
from worker.model.retries import persistently
from worker.model.types import ChatRequest, Completion, Sink, Usage
from worker.model.watch import Watch

#: Refusals that may mean a member of ours that the server does not know.
_BAD_REQUEST = frozenset({400, 422})
#: What says something about the server's health.
_FAILURES = (ModelFailed, ModelBroken, ModelTooSlow, ModelAnswerInvalid)


class _Talk:
    """One answer on its way, however often it had to be asked for."""

    def __init__(self, context: JobContext, request: ChatRequest, sink: Sink, watch: Stopwatch):
        self.context = context
        self.request = request
        self.sink = sink
        self.watch = watch
        self.draft = Draft("")


class Answering:
    """Asks the server that a `Watch` keeps an eye on."""

    def __init__(self, http: Http, watch: Watch, budgets: Budgets, numbers: Numbers) -> None:
        self._http = http
        self._watch = watch
        self._budgets = budgets
        self._numbers = numbers
        #: Servers that do not want our optional members, and whether that is known already.
        self._plain: dict[str, bool] = {}

    # -- answers -----------------------------------------------------------------------------------

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """One answer, handed to `sink` piece by piece as it comes.

        Where the job is canceled meanwhile it is what there was of it until then. Whatever ends
        this call closes the connection, which stops the server's work. Raises the errors of
        `worker.model.errors`.
        """
        watch = Stopwatch(self._budgets)
        talk = _Talk(context, request, sink, watch)
        alarm = Alarm(watch)
        asking = asyncio.ensure_future(self._ask(talk))
        canceled = asyncio.ensure_future(context.wait_for_cancel())
        try:
            stopped = await self._follow(watch, asking, canceled, alarm.rang)
        except _FAILURES as error:
            if not isinstance(error, TotalTimeout):  # a long answer is no failure
                self._watch.failed(str(error))
            self._numbers.failed()
            raise
        finally:
            alarm.close()
            await cancel(asking, canceled)
        completion = talk.draft.completion(watch, canceled=stopped)
        if not stopped:
            self._watch.worked()
        if talk.draft.begun or not stopped:
            self._numbers.answered(completion)
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
        if watch.over:
            return False
        raise rang.result()

    async def _ask(self, talk: _Talk) -> None:
        context = talk.context
        await self._watch.endpoint(context.task)  # who cannot be served does not queue up
        async with self._watch.places:
            talk.watch.start()
            await persistently(
                lambda: self._try(talk), self._watch, context.task, lambda: context.remaining_s
            )

    async def _try(self, talk: _Talk) -> None:
        endpoint = await self._watch.endpoint(talk.context.task)
        plain = self._plain.get(endpoint.base)
        try:
            await self._try_once(endpoint, talk, extras=plain is not True)
        except ModelRefused as refused:
            if plain is not None or refused.status not in _BAD_REQUEST or talk.draft.begun:
                raise
            await self._try_once(endpoint, talk, extras=False)
            self._plain[endpoint.base] = True
        else:
            self._plain.setdefault(endpoint.base, False)

    async def _try_once(self, endpoint: Endpoint, talk: _Talk, *, extras: bool) -> None:
        watch, request, trace = self._watch, talk.request, talk.context.traceparent
        body = body_for(request, watch.model, extras=extras, progress=watch.llama)
        talk.draft = draft = Draft(shown_name(body.get("model", "")))
        headers = {} if trace is None else {"traceparent": trace}
        try:
            await Asking(self._http, endpoint, talk.sink, talk.watch).run(body, draft, headers)
        except Hiccup as hiccup:
            if draft.begun:
                raise ModelBroken(
                    f"the model broke off after {draft.pieces} pieces of its answer: {hiccup}"
                ) from None
            talk.watch.hold()
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
            endpoint = await self._watch.endpoint(task)
            found.append(
                await embeddings.ask(
                    self._http,
                    endpoint,
                    model or self._watch.model,
                    texts,
                    self._budgets.first_token_s,
                    dimensions,
                )
            )

        await self._watch.endpoint(task)
        async with self._watch.places:
            try:
                await persistently(attempt, self._watch, task)
            except _FAILURES as error:
                self._watch.failed(str(error))
                self._numbers.failed()
                raise
        self._watch.worked()
        self._numbers.embedded(found[-1][1])
        return found[-1]
