"""The task `code`: a program written by a model, extracted from its answer, with a syntax check."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from sluice.common import codec
from sluice.common.contracts.jobs import Task
from sluice.common.contracts.models import ModelStep
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.execution.context import JobContext
from sluice.worker.features.model.checker.checker import Checker, CheckLimitExceeded
from sluice.worker.features.model.output_parsing import (
    ChatModel,
    UnusableAnswer,
    fenced_blocks,
    request_usable_answer,
    strip_thoughts,
)
from sluice.worker.features.model.token_events import TokenStream, completion_result, fix_surrogates
from sluice.worker.features.model.types import ChatRequest, Completion
from sluice.worker.handlers.chat_payload import TEXT_CHARS, SamplingOptions
from sluice.worker.handlers.prompt import one_prompt, prompt_field
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

#: Aliases of languages in fenced blocks.
ALIASES = {
    "py": "python", "python3": "python", "py3": "python",
    "js": "javascript", "node": "javascript", "mjs": "javascript", "ts": "typescript",
    "sh": "bash", "shell": "bash", "zsh": "bash", "console": "bash",
    "c++": "cpp", "cc": "cpp", "cxx": "cpp", "cs": "csharp", "c#": "csharp",
    "golang": "go", "rs": "rust", "rb": "ruby", "kt": "kotlin", "yml": "yaml", "md": "markdown",
}  # fmt: skip

#: Lines that occur only in programs.
_CODE_LINE = re.compile(
    r"""^\s*(?:
        (?:def|class|import|from|return|if|elif|else|for|while|try|except|with|async|await|raise
          |function|const|let|var|export|public|private|static|void|int|fn|impl|use|mod|func|package
          |type|struct|enum|interface|namespace|using|select|insert|update|create|echo|local|end
        )\b.*[({:;=]
        | (?:import|from|return|use|package|pass|break|continue|else|end)\b[^.!?]*$
        | [\#@/{}\])<$] | \#include | <\?
        | [\w.\[\]"'*]+(?:\s*:\s*[\w\[\], |]+)?\s*(?:[-+*/|&]?=|:=)\s*\S
        | [\w.]+\(.*\)\s*;?$
        | ["'\[{(].*[,\]})"'\[{(:]$
    )|[;{}]\s*$""",
    re.VERBOSE | re.IGNORECASE,
)
#: Minimum fraction of code lines in a text without fences, and how much of it is examined.
_MIN_CODE_SHARE = 0.6
_LINES = 400
_LINE_CHARS = 200


class CodeBlock(NamedTuple):
    """A program; `language` is empty if unknown."""

    code: str
    language: str


def canonical_language(language: str) -> str:
    name = language.strip().lower().lstrip(".")
    return ALIASES.get(name, name)


def find_code(text: str, language: str = "") -> CodeBlock | None:
    """The longest block in the requested language, else the longest block, else the text if it is
    code.

    None if there is no code.
    """
    text = strip_thoughts(text)
    found = [
        CodeBlock(block.text, canonical_language(block.language)) for block in fenced_blocks(text)
    ]
    found = [each for each in found if each.code.strip()]
    if found:
        matching = [
            each for each in found if language and each.language == canonical_language(language)
        ]
        best = max(matching or found, key=lambda each: len(each.code))
        return best._replace(language=best.language or canonical_language(language))
    if looks_like_code(text):
        return CodeBlock(text.strip("\n"), canonical_language(language))
    return None


def looks_like_code(text: str) -> bool:
    """True if most lines look like code."""
    lines = [line[:_LINE_CHARS] for line in text.split("\n") if line.strip()][:_LINES]
    alike = [line for line in lines if line[0] in " \t" or _CODE_LINE.match(line)]
    return bool(lines) and len(alike) >= _MIN_CODE_SHARE * len(lines)


#: Low by default, for predictable programs.
TEMPERATURE = 0.2

_SYSTEM = """\
You write {language}. Answer with one fenced code block, which begins with ```{tag} and holds the \
whole program, and nothing else."""
_HINT = "Answer with one fenced code block that holds the whole program."


class CodePayload(SamplingOptions):
    """Task of the program, its language, and whether to check its syntax."""

    prompt: str = prompt_field("prompt", min_length=1, max_length=TEXT_CHARS)
    language: str | None = Field(None, pattern=r"^[A-Za-z0-9+#. _-]{1,32}$")
    check: bool = False

    _one_prompt = one_prompt("prompt")


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    add_handler(registry, shared.model, shared.checker)


def add_handler(registry: Registry, model: ChatModel, checker: Checker) -> None:
    """Register the task `code`."""

    async def code(context: JobContext, payload: CodePayload) -> dict[str, Any]:
        language = payload.language or ""

        async def read(completion: Completion, last: bool) -> CodeBlock:
            found: CodeBlock | None = await call_in_thread(
                find_code, fix_surrogates(completion.text), language
            )
            if found is None:
                raise UnusableAnswer("it contains no code", _HINT)
            return found

        async with TokenStream(context, ModelStep.CODE) as tokens:
            completion, found = await request_usable_answer(
                context, model, _build_request(payload), tokens, read
            )
            await tokens.usage(completion)
        result = completion_result(context, completion)
        if found is None:  # canceled; a part may be there
            found = find_code(fix_surrogates(completion.text), language)
        if found is not None:
            result["code"] = found.code
            result["language"] = found.language or None
            if payload.check and not completion.canceled:
                result |= await _check_syntax(checker, found)
        result["ms"] = context.elapsed_ms
        return result

    registry.add(Task.CODE.value, code)


def _build_request(payload: CodePayload) -> ChatRequest:
    language = payload.language or "programs"
    tag = canonical_language(payload.language or "")
    return ChatRequest(
        messages=[
            {"role": "system", "content": _SYSTEM.format(language=language, tag=tag)},
            {"role": "user", "content": payload.prompt},
        ],
        max_tokens=payload.max_tokens,
        temperature=TEMPERATURE if payload.temperature is None else payload.temperature,
        seed=payload.seed,
    )


async def _check_syntax(checker: Checker, found: CodeBlock) -> dict[str, Any]:
    """Check the syntax, if that is possible without running the program."""
    if found.language == "python":
        try:
            faults = await checker.python_faults(found.code)
        except CheckLimitExceeded as error:
            return {"syntax_note": f"not checked: {error}"}
    elif found.language == "json":
        faults = _find_json_errors(found.code)
    else:
        known = found.language or "a program of unknown language"
        return {"syntax_note": f"not checked: only python and json are supported, this is {known}"}
    if faults:
        return {"syntax_ok": False, "syntax_error": faults[0]}
    return {"syntax_ok": True}


def _find_json_errors(source: str) -> list[str]:
    try:
        codec.loads(source.encode())
    except ValueError as error:
        return [str(error)]
    return []
