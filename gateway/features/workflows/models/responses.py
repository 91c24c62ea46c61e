"""What answers about workflow jobs look like; the OpenAPI page is made from these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from common import codec
from common.contracts.workflow.fields import MetadataField
from common.contracts.workflow.operations import WorkflowFact
from common.contracts.workflow.statuses import (
    MEMORY_FIRST,
    SOURCES_STEP,
    DeliveryStatus,
    DraftState,
    ItemStatus,
    StepKind,
    StepStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from gateway.http.error_formats import ErrorItem

_ID = "wf_20260214_001"
_TIME = "2026-02-14T15:30:00Z"


class PageView(BaseModel):
    """Where a page stands in its list."""

    count: int = Field(description="Entries in this page.", examples=[100])
    has_more: bool = Field(examples=[True])
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null where there is none.",
        examples=["res_200"],
    )
    total: int | None = Field(
        None, description="Entries in all; null where nobody has counted them.", examples=[128]
    )


class PaginationView(BaseModel):
    """First pages of a job's lists, as their own routes begin."""

    events: PageView
    results: PageView


class WebhookView(BaseModel):
    """Who is told of the job's events, and how the last delivery went."""

    enabled: bool
    url: str | None = Field(examples=["https://example/callback"])
    last_delivery_status: DeliveryStatus | None
    last_delivery_at: str | None = Field(examples=[_TIME])


class StepErrorView(ErrorItem):
    """What went wrong in a step; more members tell where."""

    model_config = ConfigDict(extra="allow")


class StepperView(BaseModel):
    """One step."""

    name: str = Field(examples=["index_extract"])
    status: StepStatus
    updated_at: str = Field(examples=[_TIME])
    attempt: int = Field(description="How often it was executed.", examples=[1])
    execution_id: str | None = Field(examples=["ex_9f2c41d0"])
    error: StepErrorView | None = Field(description="Why it failed, if it did.", examples=[None])


class UndoView(BaseModel):
    """What can be taken back."""

    depth: int = Field(description="How many operations, 25 at most.", examples=[5])
    last_undo_token: str | None = Field(description="Of the last one.", examples=["undo_9f2c41d0"])


class StepOutcomeView(BaseModel):
    """What a complete step came to."""

    summary: str = Field(examples=["Generated 128 proposals"])
    count: int = Field(examples=[128])
    completed_at: str = Field(examples=[_TIME])


class WorkflowJobSummary(BaseModel):
    """A job in a list."""

    job_id: str = Field(examples=[_ID])
    workflow: str = Field(examples=["memory_first_v2"])
    status: WorkflowStatus
    current_step: str = Field(
        description="The step that runs, or else ran last.", examples=["index_extract"]
    )
    progress: float = Field(description="0 to 1, which means completed.", examples=[0.42])
    draft_state: DraftState
    started_at: str = Field(examples=[_TIME])
    updated_at: str = Field(examples=[_TIME])
    completed_at: str | None = Field(examples=[None])
    idempotency_key: str | None = Field(examples=["6d3f"])


class WorkflowJobView(WorkflowJobSummary):
    """A job as it stands."""

    webhook: WebhookView
    stepper: list[StepperView] = Field(description="All steps, in their order.")
    pagination: PaginationView
    undo: UndoView
    metadata: dict[str, Any] = Field(
        description="The client's own members; `completed_steps`, `last_result_by_step`, and "
        "where the workflow has such steps `source_count` and `proposal_count`.",
        examples=[
            {
                MetadataField.SOURCE_COUNT: 3,
                MetadataField.PROPOSAL_COUNT: 128,
                MetadataField.COMPLETED_STEPS: [SOURCES_STEP],
            }
        ],
    )


class JobStatusView(BaseModel):
    """The answer to whoever made a job, or asks for it."""

    success: bool = Field(True, examples=[True])
    job: WorkflowJobView


class ItemView(BaseModel):
    """Something that a step left."""

    id: str = Field(examples=["p_001"])
    type: str = Field(examples=["proposal"])
    status: ItemStatus
    payload: Any = Field(examples=[{"from": "DLQ", "to": "dead letter queue"}])
    version: int = Field(description="Grows with each change.", examples=[3])
    undo_token: str | None = Field(
        description="Undoes its last change; null where there is none.", examples=["undo_p_001"]
    )


class BulkView(BaseModel):
    """Whether many of the items can be decided on at once, and what was done so last."""

    supported: bool
    last_operation: str | None = Field(examples=["approve_selected"])


class OntologyEditsView(BaseModel):
    """Whether items can be edited, and how many changes have not been applied."""

    supported: bool
    granular: bool
    pending_changes: int = Field(examples=[4])


class ResultBody(BaseModel):
    """What a step came to, and a page of its items."""

    summary: str = Field(examples=["Generated 128 proposals"])
    items: list[ItemView]
    bulk: BulkView
    ontology_edits: OntologyEditsView
    pagination: PageView


class ResultView(BaseModel):
    """The answer to whoever asks for results."""

    success: bool = Field(examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    result: ResultBody
    errors: list[StepErrorView]


class ExecutionView(BaseModel):
    """The answer to whoever executes a step."""

    success: bool = Field(examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    execution_id: str | None = Field(examples=["ex_9f2c41d0"])
    result: ResultBody
    errors: list[StepErrorView]


class WorkflowEventView(BaseModel):
    """Something that happened."""

    id: str = Field(description="As in `Last-Event-ID` of the live stream.", examples=["12-0"])
    seq: int = Field(description="Its number among the job's events.", examples=[12])
    type: WorkflowEvent | str
    at: str = Field(examples=[_TIME])
    step: str | None = Field(examples=["index_extract"])
    data: Any = Field(examples=[{WorkflowFact.SUMMARY: "…", WorkflowFact.COUNT: 12}])


class EventListView(BaseModel):
    """A page of a job's events, oldest first."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    events: list[WorkflowEventView]
    pagination: PageView


class JobListView(BaseModel):
    """A page of jobs, the newest first."""

    success: bool = Field(True, examples=[True])
    jobs: list[WorkflowJobSummary]
    pagination: PageView


_TOKEN = "undo_9f2c41d0"


class StartedStepView(BaseModel):
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
    started: StartedStepView | None = Field(description="The step that goes on after it.")


class BulkResponse(BaseModel):
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
    started: StartedStepView | None = Field(description="The step that goes on after it.")


class ExecuteResponse(ExecutionView):
    """The answer to an execute; what follows `errors` is there where a review got decisions."""

    applied: int | None = None
    failed: int | None = None
    undo_token: str | None = None
    pending: int | None = None
    completed: bool | None = None
    started: StartedStepView | None = None


class EditResponse(BaseModel):
    """The answer to an edit."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    item: ItemView
    undo_token: str | None = Field(examples=["undo_p_001"])
    ontology_edits: OntologyEditsView
    errors: list[StepErrorView] = Field(default_factory=list)


class UndoResponse(BaseModel):
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


class CancelResponse(BaseModel):
    """The answer to a cancel."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    job: WorkflowJobView


def to_json_dict(view: BaseModel) -> dict[str, Any]:
    """A view as JSON knows it."""
    return view.model_dump(mode="json")


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
