"""Makes a plan of what a model said: steps with ids of their own, without loose ends or circles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from common.contracts.jobs import Task
from common.contracts.models import ModelStep
from worker.execution.concurrency import call_in_thread
from worker.execution.context import JobContext
from worker.features.model.output_parsing import (
    ChatModel,
    NoJsonFound,
    UnusableAnswer,
    find_json,
    request_usable_answer,
    strip_thoughts,
)
from worker.features.model.token_events import TokenStream, completion_result, fix_surrogates
from worker.features.model.types import ChatRequest, Completion
from worker.handlers.chat_payload import TEXT_CHARS, SamplingOptions
from worker.registry import Registry

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings
    from worker.features.shared import SharedServices

#: Longest texts of a step: what a small model is held to, so that it comes to an end.
SCHEMA_TITLE_CHARS = 100
SCHEMA_DETAIL_CHARS = 300
#: Steps that a step may wait for.
SCHEMA_MAX_DEPENDENCIES = 8
#: Tokens that the longest plan takes, for each step and for the rest.
TOKENS_PER_STEP = 160
TOKENS_OVERHEAD = 96

# In words, without an example: small models answer with the example.
_SYSTEM = """\
You make plans. Divide the goal into at most {most} steps which, one after the other, lead to it. \
Answer with JSON and nothing else: an object with one member "steps", a list of objects. Each has \
a "title" of a few words that say what to do, a "detail" of one sentence that says how, and \
"depends_on", a list of the numbers of the steps that must be finished first. The first step has \
the number 1. A step that can begin at once depends on nothing."""


class PlanPayload(SamplingOptions):
    """A goal, what should be known about it, and how many steps there may be."""

    goal: str = Field(min_length=1, max_length=TEXT_CHARS)
    context: str | None = Field(None, max_length=TEXT_CHARS)
    max_steps: int = Field(8, ge=1, le=50)

    def conversation(self) -> list[dict[str, Any]]:
        """All that is said to the model."""
        asked = f"Goal: {self.goal}"
        if self.context:
            asked = f"{self.context}\n\n{asked}"
        return [
            {"role": "system", "content": _SYSTEM.format(most=self.max_steps)},
            {"role": "user", "content": asked},
        ]

    @property
    def most_tokens(self) -> int:
        """What was asked for, else enough for the longest plan."""
        return self.max_tokens or TOKENS_OVERHEAD + TOKENS_PER_STEP * self.max_steps

    def response_format(self) -> dict[str, Any]:
        """The plan's form, for servers that hold a model to it."""
        step: dict[str, Any] = {
            "title": {"type": "string", "minLength": 1, "maxLength": SCHEMA_TITLE_CHARS},
            "detail": {"type": "string", "maxLength": SCHEMA_DETAIL_CHARS},
        }
        if self.max_steps > 1:
            step["depends_on"] = {
                "type": "array",
                "maxItems": SCHEMA_MAX_DEPENDENCIES,
                "items": {"type": "integer", "enum": list(range(1, self.max_steps))},
            }
        steps = {
            "type": "array",
            "minItems": 1,
            "maxItems": self.max_steps,
            "items": _object_schema(step),
        }
        form = {"name": "steps", "strict": True, "schema": _object_schema({"steps": steps})}
        return {"type": "json_schema", "json_schema": form}


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


#: Longer ids, titles and details are nobody's.
ID_CHARS = 64
TITLE_CHARS = 300
DETAIL_CHARS = 4000
#: Dependencies of a step that are looked at, and faults of a plan that are told.
MOST_DEPENDENCIES = 100
MOST_FAULTS = 10

_NUMBERED = re.compile(r"\s{0,8}(?:#{1,6}\s*)?(?:\*\*)?(?:step\s+)?\d{1,3}\s*[.):]\s+(.+)", re.I)
_BULLET = re.compile(r"\s{0,3}[-*•]\s+(.+)")
_TITLE_END = re.compile(r"(?::\s+|\s+[–—-]\s+)")


class InvalidPlan(ValueError):
    """It is none; the text says why."""


@dataclass
class PlanStep:
    """One step of a plan."""

    id: str
    title: str
    detail: str = ""
    depends_on: list[str] = field(default_factory=list)

    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = {"id": self.id, "title": self.title}
        if self.detail:
            view["detail"] = self.detail
        if self.depends_on:
            view["depends_on"] = self.depends_on
        return view


@dataclass
class Plan:
    """Steps in an order that works, and what had to be left out of the answer."""

    steps: list[PlanStep]
    warnings: list[str] = field(default_factory=list)


def parse_plan(text: str, most: int, lenient: bool = False) -> Plan:
    """The plan in `text`; raises BadPlan. Leniently, what makes no sense is left out and told."""
    steps = _parse_steps(text)
    faults: list[str] = []
    if len(steps) > most:
        faults.append(f"there are {len(steps)} steps, {most} at most")
        del steps[most:]
    faults += _drop_unknown_dependencies(steps)
    ordered, circles = _order_without_cycles(steps)
    faults = (faults + circles)[:MOST_FAULTS]
    if faults and not lenient:
        raise InvalidPlan("; ".join(faults))
    return Plan(ordered, faults)


def _parse_steps(text: str) -> list[PlanStep]:
    try:
        value = find_json(text)
    except NoJsonFound as error:
        listed = _parse_markdown_list(strip_thoughts(text))
        if not listed:
            raise InvalidPlan(str(error)) from None
        return listed
    # Some models wrap the list in an object, some do not.
    items = value.get("steps") if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise InvalidPlan("it has no list of steps")
    return _assign_ids([step for step in map(_parse_step, items) if step is not None])


def _parse_step(item: Any) -> tuple[str, PlanStep, list[Any]] | None:
    """A step as the model has it: its id if it has one, and what it names as done before."""
    if isinstance(item, str):
        item = {"title": item}
    if not isinstance(item, Mapping):
        raise InvalidPlan("a step is neither an object nor a text")
    title, detail = _single_line(item.get("title")), _single_line(item.get("detail"))
    if not title:
        title, detail = detail, ""
    if not title:
        return None
    before = item.get("depends_on")
    before = before[:MOST_DEPENDENCIES] if isinstance(before, list) else []
    return (
        _id_text(item.get("id")),
        PlanStep("", title[:TITLE_CHARS], detail[:DETAIL_CHARS]),
        before,
    )


def _assign_ids(read: Sequence[tuple[str, PlanStep, list[Any]]]) -> list[PlanStep]:
    """The steps under the model's ids, or under their numbers where those are not unique."""
    if not read:
        raise InvalidPlan("it has no steps")
    ids = [own for own, _, _ in read]
    if not all(ids) or len(set(ids)) < len(ids):
        ids = [str(number) for number in range(1, len(read) + 1)]
    steps = []
    for step_id, (_, step, before) in zip(ids, read):
        step.id = step_id
        step.depends_on = list(dict.fromkeys(filter(None, map(_id_text, before))))
        steps.append(step)
    return steps


def _drop_unknown_dependencies(steps: list[PlanStep]) -> list[str]:
    """Forget what no step can depend on; returns what is wrong with that. Itself is no matter."""
    known = {step.id for step in steps}
    faults = []
    for step in steps:
        lost = [name for name in step.depends_on if name not in known]
        faults += [f"step {step.id!r} depends on {name!r}, which is not there" for name in lost]
        step.depends_on = [name for name in step.depends_on if name in known - {step.id}]
    return faults


def _order_without_cycles(steps: list[PlanStep]) -> tuple[list[PlanStep], list[str]]:
    """Every step behind those it depends on; where that cannot be, it no longer does."""
    placed: dict[str, PlanStep] = {}
    faults = []
    rest = list(steps)
    while rest:
        ready = next((step for step in rest if placed.keys() >= set(step.depends_on)), None)
        if ready is None:
            ready = rest[0]
            behind = [name for name in ready.depends_on if name not in placed]
            ready.depends_on = [name for name in ready.depends_on if name in placed]
            named = ", ".join(map(repr, behind))
            faults.append(f"step {ready.id!r} and {named} depend on each other")
        rest.remove(ready)
        placed[ready.id] = ready
    return list(placed.values()), faults


def _parse_markdown_list(text: str) -> list[PlanStep]:
    """The steps of a list in Markdown: numbered, else with bullets."""
    for item, least in ((_NUMBERED, 1), (_BULLET, 2)):
        steps: list[PlanStep] = []
        for line in text.split("\n"):
            match = item.match(line)
            if match is not None:
                title, detail = _split_title(match[1])
                steps.append(PlanStep(str(len(steps) + 1), title, detail))
            elif steps and line.strip():
                steps[-1].detail = f"{steps[-1].detail} {_single_line(line)}".strip()[:DETAIL_CHARS]
        steps = [step for step in steps if step.title]
        if len(steps) >= least:
            return _renumber(steps)
    return []


def _renumber(steps: list[PlanStep]) -> list[PlanStep]:
    for number, step in enumerate(steps, 1):
        step.id = str(number)
    return steps


def _split_title(line: str) -> tuple[str, str]:
    """`Title: detail`, as lists have it."""
    title, *detail = _TITLE_END.split(_single_line(line), maxsplit=1)
    return title.rstrip(": ")[:TITLE_CHARS], "".join(detail)[:DETAIL_CHARS]


def _single_line(value: Any) -> str:
    """A text in one line, without marks of emphasis."""
    return " ".join(value.replace("**", "").split()) if isinstance(value, str) else ""


def _id_text(value: Any) -> str:
    """An id or a number as text; empty for what is none."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return " ".join(str(value).split())[:ID_CHARS]


#: A plan is no place for surprises, unless they are asked for.
TEMPERATURE = 0.3


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    add_handler(registry, shared.model)


def add_handler(registry: Registry, model: ChatModel) -> None:
    """Let `model` do the task `plan`."""

    async def plan(context: JobContext, payload: PlanPayload) -> dict[str, Any]:
        request = ChatRequest(
            messages=payload.conversation(),
            max_tokens=payload.most_tokens,
            temperature=TEMPERATURE if payload.temperature is None else payload.temperature,
            seed=payload.seed,
            response_format=payload.response_format(),
        )

        async def read(completion: Completion, last: bool) -> Plan:
            try:
                made: Plan = await call_in_thread(
                    parse_plan, fix_surrogates(completion.text), payload.max_steps, last
                )
            except InvalidPlan as error:
                raise UnusableAnswer(str(error), "Answer with the JSON of a better plan.") from None
            return made

        async with TokenStream(context, ModelStep.PLAN) as tokens:
            plain = replace(request, response_format=None)  # the prompt has it in words
            completion, made = await request_usable_answer(
                context, model, request, tokens, read, plain=plain
            )
            await tokens.usage(completion)
        result = completion_result(context, completion)
        if made is not None:
            result["steps"] = [step.view() for step in made.steps]
            if made.warnings:
                result["warnings"] = made.warnings
        return result

    registry.add(Task.PLAN.value, plan)
