"""The task `code`: a program written by a model, taken out of its answer, its syntax checked."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from common import codec
from common.contracts.jobs import Task
from common.contracts.models import ModelStep
from worker.context import JobContext
from worker.handlers.chat_payload import TEXT_CHARS, Sampling
from worker.handlers.code_blocks import Found, canonical, find_code
from worker.model.checker import Checker, TooHard
from worker.model.results import result_of
from worker.model.rounds import Model, Unusable, ask
from worker.model.tokens import TokenStream, clean
from worker.model.types import ChatRequest, Completion
from worker.registry import Registry
from worker.threads import call_in_thread

#: Programs are better without surprises, unless they are asked for.
TEMPERATURE = 0.2

_SYSTEM = """\
You write {language}. Answer with one fenced code block, which begins with ```{tag} and holds the \
whole program, and nothing else."""
_HINT = "Answer with one fenced code block that holds the whole program."


class CodePayload(Sampling):
    """What the program should do, in which language, and whether its syntax is to be checked."""

    prompt: str = Field(min_length=1, max_length=TEXT_CHARS)
    language: str | None = Field(None, pattern=r"^[A-Za-z0-9+#. _-]{1,32}$")
    check: bool = False


def register(registry: Registry, model: Model, checker: Checker) -> None:
    """Let `model` do the task `code`."""

    async def code(context: JobContext, payload: CodePayload) -> dict[str, Any]:
        wanted = payload.language or ""

        async def read(completion: Completion, last: bool) -> Found:
            found: Found | None = await call_in_thread(find_code, clean(completion.text), wanted)
            if found is None:
                raise Unusable("there is no code in it", _HINT)
            return found

        async with TokenStream(context, ModelStep.CODE) as tokens:
            completion, found = await ask(context, model, _request(payload), tokens, read)
            await tokens.usage(completion)
        result = result_of(context, completion)
        if found is None:  # canceled; perhaps there was a part of it
            found = find_code(clean(completion.text), wanted)
        if found is not None:
            result["code"] = found.code
            result["language"] = found.language or None
            if payload.check and not completion.canceled:
                result |= await _syntax(checker, found)
        result["ms"] = context.elapsed_ms
        return result

    registry.add(Task.CODE.value, code)


def _request(payload: CodePayload) -> ChatRequest:
    language = payload.language or "programs"
    tag = canonical(payload.language or "")
    return ChatRequest(
        messages=[
            {"role": "system", "content": _SYSTEM.format(language=language, tag=tag)},
            {"role": "user", "content": payload.prompt},
        ],
        max_tokens=payload.max_tokens,
        temperature=TEMPERATURE if payload.temperature is None else payload.temperature,
        seed=payload.seed,
    )


async def _syntax(checker: Checker, found: Found) -> dict[str, Any]:
    """Whether the program is one, where that can be told without running it."""
    if found.language == "python":
        try:
            faults = await checker.python_faults(found.code)
        except TooHard as error:
            return {"syntax_note": f"not checked: {error}"}
    elif found.language == "json":
        faults = _json_faults(found.code)
    else:
        known = found.language or "a program of unknown language"
        return {"syntax_note": f"not checked: only python and json can be, this is {known}"}
    if faults:
        return {"syntax_ok": False, "syntax_error": faults[0]}
    return {"syntax_ok": True}


def _json_faults(source: str) -> list[str]:
    try:
        codec.loads(source.encode())
    except ValueError as error:
        return [str(error)]
    return []
