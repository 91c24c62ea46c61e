"""Asks a model for something usable, and once more where what came is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from worker.context import JobContext
from worker.model.errors import ModelAnswerInvalid, ModelRefused, quoted
from worker.model.tokens import TokenStream, clean
from worker.model.types import ChatRequest, Completion, Sink

T = TypeVar("T")

#: How an answer ends for which there were too few tokens.
CUT_OFF = "length"
#: Statuses of servers that know no grammars, or not this one, or not together with tools.
_NOT_IN_THAT_FORM = frozenset({400, 422, 501})


class Model(Protocol):
    """Whoever answers; see `worker.model.client`."""

    @property
    def name(self) -> str:
        """Which model answers; empty while that is not known."""

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """One answer, streamed into `sink`; the part there was, if the job is canceled."""


class Unusable(Exception):
    """An answer is not what was asked for: why, and what to tell the model for another one."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


#: Makes something of an answer; raises Unusable. The flag: there will be no other answer.
Reader = Callable[[Completion, bool], Awaitable[T]]


async def ask(
    context: JobContext,
    model: Model,
    request: ChatRequest,
    tokens: TokenStream,
    read: Reader[T],
    *,
    plain: ChatRequest | None = None,
    first: Completion | None = None,
) -> tuple[Completion, T | None]:
    """The answer, and what was made of it: None only where the job was canceled.

    `plain` is the same request for servers that refuse it because of its form; `first` an answer
    that is there already. Raises ModelAnswerInvalid.
    """
    completion = first
    if completion is None:
        request, completion = await _first(context, model, request, tokens, plain)
    if completion.canceled:
        return completion, None
    try:
        return completion, await read(completion, False)
    except Unusable as why:
        if completion.finish_reason == CUT_OFF:
            raise _invalid(why, completion) from None
        fault = why
    await tokens.next_round()
    completion = await _again(context, model, request, tokens, completion, fault)
    if completion.canceled:
        return completion, None
    try:
        return completion, await read(completion, True)
    except Unusable as why:
        raise _invalid(why, completion) from None


async def _first(
    context: JobContext,
    model: Model,
    request: ChatRequest,
    tokens: TokenStream,
    plain: ChatRequest | None,
) -> tuple[ChatRequest, Completion]:
    """The first answer, and the request that the server took."""
    try:
        return request, await model.complete(context, request, tokens)
    except ModelRefused as refused:
        if plain is None or refused.status not in _NOT_IN_THAT_FORM:
            raise
        try:
            return plain, await model.complete(context, plain, tokens)
        except ModelRefused:  # so it was not the form
            raise refused from None


async def _again(
    context: JobContext,
    model: Model,
    request: ChatRequest,
    tokens: TokenStream,
    before: Completion,
    why: Unusable,
) -> Completion:
    objection: list[dict[str, Any]] = [
        {"role": "assistant", "content": clean(before.text)},
        {"role": "user", "content": f"That answer cannot be used: {why}. {why.hint}"},
    ]
    messages = [*request.messages, *(objection if before.text.strip() else objection[1:])]
    after = await model.complete(context, replace(request, messages=messages), tokens)
    return replace(
        after,
        usage=before.usage + after.usage,
        ms=before.ms + after.ms,
        first_token_ms=before.first_token_ms,
    )


def _invalid(why: Unusable, completion: Completion) -> ModelAnswerInvalid:
    if completion.finish_reason == CUT_OFF:
        return ModelAnswerInvalid(
            f"the answer was cut off after {completion.usage.completion_tokens} tokens: raise "
            "max_tokens, ask for less, or give the model server a larger context"
        )
    return ModelAnswerInvalid(
        f"the answer cannot be used: {quoted(why)}; it was: {quoted(completion.text) or 'nothing'}"
    )
