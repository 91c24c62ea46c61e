"""Gets usable output from a model: finds JSON in answers, and asks once more if one is unusable."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from sluice.common import codec
from sluice.common.text import plural
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.errors import ModelAnswerInvalid, ModelRefused, sanitize_text
from sluice.worker.features.model.token_events import TokenStream, fix_surrogates
from sluice.worker.features.model.types import ChatRequest, Completion, Sink

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")


class FencedBlock(NamedTuple):
    """Text between two fences; the closing fence of the last block may be missing."""

    #: First word after the opening fence, in lower case.
    language: str
    text: str


def fenced_blocks(text: str) -> list[FencedBlock]:
    found: list[FencedBlock] = []
    fence = language = ""
    inside: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line.rstrip("\r"))
        if not fence:
            if match is not None:
                words = match[2].split()
                fence, language, inside = match[1], words[0].lower() if words else "", []
        elif match is not None and _closes(match, fence):
            found.append(FencedBlock(language, "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    if fence and any(line.strip() for line in inside):  # truncated, or never closed
        found.append(FencedBlock(language, "\n".join(inside)))
    return found


def _closes(match: re.Match[str], fence: str) -> bool:
    return match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip()


#: The same depth that the gateway accepts in requests.
MOST_LEVELS = 64
#: Positions in a text at which JSON is tried.
MOST_TRIES = 64
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


class NoJsonFound(ValueError):
    """The text contains no JSON; the message gives the reason."""


def find_json(text: str) -> Any:
    """The JSON value that `text` is or contains. Raises NoJsonFound."""
    text = strip_thoughts(text).strip()
    try:
        return _parse_json(text)
    except ValueError as error:
        reason = str(error)
    for candidate in sorted(_candidates(text), key=len, reverse=True):
        try:
            return _parse_json(candidate)
        except ValueError:
            continue
    raise NoJsonFound(f"it is not JSON: {reason}" if text else "it is empty")


def strip_thoughts(text: str) -> str:
    """`text` without a leading `<think>` section, which some servers leave in."""
    if text.lstrip().startswith(_THINK_OPEN):
        return text.partition(_THINK_CLOSE)[2]
    return text


def _parse_json(text: str) -> Any:
    value = codec.loads(text.encode(errors="replace"))
    if nesting_depth(value) > MOST_LEVELS:
        raise ValueError(f"nested deeper than {MOST_LEVELS} levels")
    return value


def _candidates(text: str) -> Iterator[str]:
    for block in fenced_blocks(text):
        if block.language in ("", "json", "json5", "jsonc"):
            yield block.text
    decoder = json.JSONDecoder()
    tries = start = 0
    while tries < MOST_TRIES:
        starts = [found for found in (text.find("{", start), text.find("[", start)) if found >= 0]
        if not starts:
            return
        start, tries = min(starts), tries + 1
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        yield text[start:end]
        start = end


def nesting_depth(value: Any) -> int:
    """Nesting depth of lists and objects in `value`."""
    deepest, rest = 0, [(value, 1)]
    while rest:
        item, level = rest.pop()
        if isinstance(item, (dict, list)):
            deepest = max(deepest, level)
            below = item.values() if isinstance(item, dict) else item
            rest += [(each, level + 1) for each in below]
    return deepest


T = TypeVar("T")

#: Finish reason of an answer that was cut off by the token limit.
FINISH_LENGTH = "length"
#: Statuses of servers that do not support the response format, or not together with tools.
_UNSUPPORTED_FORM = frozenset({400, 422, 501})


class ChatModel(Protocol):
    """The model client as handlers use it; see `sluice.worker.features.model.client`."""

    @property
    def name(self) -> str:
        """Name of the model; empty until known."""

    async def complete(self, context: JobContext, request: ChatRequest, sink: Sink) -> Completion:
        """Stream one answer into `sink`.

        If the job is canceled, returns the part received so far.
        """


class UnusableAnswer(Exception):
    """An answer is unusable: the reason, and a hint for the model's next answer."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


#: Parses an answer; raises UnusableAnswer. The flag is True for the last answer.
AnswerReader = Callable[[Completion, bool], Awaitable[T]]


async def request_usable_answer(
    context: JobContext,
    model: ChatModel,
    request: ChatRequest,
    tokens: TokenStream,
    read: AnswerReader[T],
    *,
    plain: ChatRequest | None = None,
    first: Completion | None = None,
) -> tuple[Completion, T | None]:
    """Return the answer and its parsed value; the value is None only if the job was canceled.

    `plain` is an equivalent request for servers that reject the response format. `first` is an
    answer that already exists. Raises ModelAnswerInvalid.
    """
    completion = first
    if completion is None:
        request, completion = await _first_answer(context, model, request, tokens, plain)
    if completion.canceled:
        return completion, None
    try:
        return completion, await read(completion, False)
    except UnusableAnswer as why:
        if completion.finish_reason == FINISH_LENGTH:
            raise _invalid(why, completion) from None
        problem = why
    await tokens.next_round()
    completion = await _second_answer(context, model, request, tokens, completion, problem)
    if completion.canceled:
        return completion, None
    try:
        return completion, await read(completion, True)
    except UnusableAnswer as why:
        raise _invalid(why, completion) from None


async def _first_answer(
    context: JobContext,
    model: ChatModel,
    request: ChatRequest,
    tokens: TokenStream,
    plain: ChatRequest | None,
) -> tuple[ChatRequest, Completion]:
    """The first answer, and the request that the server accepted."""
    try:
        return request, await model.complete(context, request, tokens)
    except ModelRefused as refused:
        if plain is None or refused.status not in _UNSUPPORTED_FORM:
            raise
        try:
            return plain, await model.complete(context, plain, tokens)
        except ModelRefused:  # the response format was not the cause
            raise refused from None


async def _second_answer(
    context: JobContext,
    model: ChatModel,
    request: ChatRequest,
    tokens: TokenStream,
    before: Completion,
    why: UnusableAnswer,
) -> Completion:
    objection: list[dict[str, Any]] = [
        {"role": "assistant", "content": fix_surrogates(before.text)},
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


def _invalid(why: UnusableAnswer, completion: Completion) -> ModelAnswerInvalid:
    if completion.finish_reason == FINISH_LENGTH:
        return ModelAnswerInvalid(
            f"the answer was cut off after "
            f"{plural(completion.usage.completion_tokens, 'token')}: raise "
            "max_tokens, ask for less, or give the model server a larger context"
        )
    return ModelAnswerInvalid(
        f"the answer cannot be used: {sanitize_text(why)}; it was: "
        f"{sanitize_text(completion.text) or 'nothing'}"
    )
