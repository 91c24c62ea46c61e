"""What answers about workflows that can be started look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from common import codec
from common.contracts.workflow import MEMORY_FIRST, SOURCES_STEP, StepKind
from common.workflow.definition import StepDefinition, WorkflowDefinition


class StepDefinitionView(BaseModel):
    """One step, as it was declared."""

    name: str = Field(examples=[SOURCES_STEP])
    kind: StepKind = Field(description="Who does it: a worker, or a person.")
    item_type: str = Field(description="What its items are called.", examples=["source"])
    weight: float = Field(description="Its share of the whole, 0 to 1.", examples=[0.1])
    proposes: bool = Field(description="Whether its items are there to be decided on.")
    reviews: str | None = Field(description="Of a review: the step whose items are decided on.")
    options_schema: Any = Field(description="JSON Schema of its options; null for any.")


class WorkflowDefinitionView(BaseModel):
    """A workflow."""

    name: str = Field(examples=[MEMORY_FIRST])
    description: str
    steps: list[StepDefinitionView] = Field(description="In their order.")


class DefinitionListView(BaseModel):
    """Every workflow that is known, by name."""

    success: bool = Field(True, examples=[True])
    workflows: list[WorkflowDefinitionView]


def definition_list(known: Sequence[WorkflowDefinition]) -> bytes:
    """The answer with all of them."""
    view = DefinitionListView(
        workflows=[
            WorkflowDefinitionView(
                name=each.name,
                description=each.description,
                steps=[_step(step) for step in each.steps],
            )
            for each in known
        ]
    )
    return codec.dumps(view.model_dump(mode="json"))


def _step(step: StepDefinition) -> StepDefinitionView:
    return StepDefinitionView(
        name=step.name,
        kind=step.kind,
        item_type=step.item_type,
        weight=step.weight,
        proposes=step.proposes,
        reviews=step.reviews or None,
        options_schema=step.options_schema,
    )
