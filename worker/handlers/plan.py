"""The task `plan`: a goal divided into steps by a model, checked before anybody follows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.contracts.jobs import Task
from common.contracts.models import ModelStep
from worker.context import JobContext
from worker.handlers.plan_payload import PlanPayload
from worker.handlers.plan_steps import BadPlan, Plan, read_plan
from worker.model.results import result_of
from worker.model.rounds import Model, Unusable, ask
from worker.model.tokens import TokenStream, clean
from worker.model.types import ChatRequest, Completion
from worker.registry import Registry
from worker.threads import call_in_thread

#: A plan is no place for surprises, unless they are asked for.
TEMPERATURE = 0.3


def register(registry: Registry, model: Model) -> None:
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
                    read_plan, clean(completion.text), payload.max_steps, last
                )
            except BadPlan as error:
                raise Unusable(str(error), "Answer with the JSON of a better plan.") from None
            return made

        async with TokenStream(context, ModelStep.PLAN) as tokens:
            plain = replace(request, response_format=None)  # the prompt has it in words
            completion, made = await ask(context, model, request, tokens, read, plain=plain)
            await tokens.usage(completion)
        result = result_of(context, completion)
        if made is not None:
            result["steps"] = [step.view() for step in made.steps]
            if made.warnings:
                result["warnings"] = made.warnings
        return result

    registry.add(Task.PLAN.value, plan)
