"""What answers to requests that act look like; the OpenAPI page is made from these."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.workflow import DraftState, WorkflowStatus
from gateway.workflow.models import (
    ExecutionView,
    ItemView,
    OntologyEditsView,
    StepErrorView,
    UndoView,
    WorkflowJobView,
)

_ID = "wf_20260214_001"
_TOKEN = "undo_9f2c41d0"


class StartedView(BaseModel):
    """What went on by itself."""

    model_config = ConfigDict(extra="ignore")

    step: str = Field(examples=["apply"])
    execution_id: str = Field(examples=["ex_9f2c41d0"])


class DecisionsView(BaseModel):
    """What came of decisions, and how the review stands."""

    applied: int = Field(description="Items that are as they were wanted.", examples=[2])
    failed: int = Field(description="Items that are not; see `errors`.", examples=[0])
    undo_token: str | None = Field(description="Takes all of it back.", examples=[_TOKEN])
    pending: int = Field(description="Items that are still undecided.", examples=[126])
    completed: bool = Field(description="Whether the review has ended by it.")
    started: StartedView | None = Field(description="The step that goes on after it.")


class DecidedView(BaseModel):
    """The answer to a bulk operation; where it is refused as a whole, `detail` says why."""

    success: bool = Field(description="Whether nothing failed.", examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    applied: int = Field(description="Items that are as they were wanted.", examples=[2])
    failed: int = Field(description="Items that are not; see `errors`.", examples=[0])
    items: list[ItemView] = Field(
        description="Items that were decided on, the first 500; of a refusal, as they are."
    )
    errors: list[StepErrorView]
    undo_token: str | None = Field(description="Takes all of it back.", examples=[_TOKEN])
    pending: int = Field(description="Items that are still undecided.", examples=[126])
    completed: bool = Field(description="Whether the review has ended by it.")
    started: StartedView | None = Field(description="The step that goes on after it.")


class ExecutedView(ExecutionView):
    """The answer to an execute; what follows `errors` is there where a review got decisions."""

    applied: int | None = None
    failed: int | None = None
    undo_token: str | None = None
    pending: int | None = None
    completed: bool | None = None
    started: StartedView | None = None


class EditedView(BaseModel):
    """The answer to an edit."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    item: ItemView
    undo_token: str | None = Field(examples=["undo_p_001"])
    ontology_edits: OntologyEditsView
    errors: list[StepErrorView] = Field(default_factory=list)


class UndoneView(BaseModel):
    """The answer to an undoing."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    undo_token: str = Field(examples=[_TOKEN])
    undone: list[str] = Field(description="Ids of the items.", examples=[["p_001"]])
    items: list[ItemView] = Field(description="As they are now, the first 500.")
    undo: UndoView = Field(description="What can still be taken back.")
    status: WorkflowStatus
    draft_state: DraftState
    errors: list[StepErrorView] = Field(default_factory=list)


class CancelledView(BaseModel):
    """The answer to a cancel."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    job: WorkflowJobView


def dumped(view: BaseModel) -> dict[str, Any]:
    """A view as JSON knows it."""
    return view.model_dump(mode="json")
