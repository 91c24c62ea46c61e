"""Response models of the workflow API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sluice.common import codec
from sluice.common.contracts.workflow.fields import MetadataField
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import (
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
from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from sluice.gateway.http.error_formats import ErrorItem

_ID = "wf_20260214_001"
_TIME = "2026-02-14T15:30:00Z"


class PageView(BaseModel):
    """Pagination of a list."""

    count: int = Field(description="Number of entries on this page.", examples=[100])
    has_more: bool = Field(examples=[True])
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page.",
        examples=["res_200"],
    )
    total: int | None = Field(
        None, description="Number of all entries; null if unknown.", examples=[128]
    )


class PaginationView(BaseModel):
    """Pagination of the first pages of a job's events and results."""

    events: PageView
    results: PageView


class WebhookView(BaseModel):
    """The webhook of a job, and its last delivery."""

    enabled: bool
    url: str | None = Field(examples=["https://example/callback"])
    last_delivery_status: DeliveryStatus | None
    last_delivery_at: str | None = Field(examples=[_TIME])


class StepErrorView(ErrorItem):
    """An error of a step; it may have more members."""

    model_config = ConfigDict(extra="allow")


class StepperView(BaseModel):
    """State of one step."""

    name: str = Field(examples=["index_extract"])
    status: StepStatus
    updated_at: str = Field(examples=[_TIME])
    attempt: int = Field(description="Number of executions.", examples=[1])
    execution_id: str | None = Field(examples=["ex_9f2c41d0"])
    error: StepErrorView | None = Field(description="Error of a failed step.", examples=[None])


class UndoView(BaseModel):
    """Operations that can be undone."""

    depth: int = Field(description="Number of operations, at most 25.", examples=[5])
    last_undo_token: str | None = Field(
        description="Token of the last operation.", examples=["undo_9f2c41d0"]
    )


class StepOutcomeView(BaseModel):
    """Result of a complete step."""

    summary: str = Field(examples=["Generated 128 proposals"])
    count: int = Field(examples=[128])
    completed_at: str = Field(examples=[_TIME])


class WorkflowJobSummary(BaseModel):
    """A job in a list."""

    job_id: str = Field(examples=[_ID])
    workflow: str = Field(examples=["memory_first_v2"])
    status: WorkflowStatus
    current_step: str = Field(
        description="The running step, or the last one that ran.", examples=["index_extract"]
    )
    progress: float = Field(description="0 to 1; 1 means completed.", examples=[0.42])
    draft_state: DraftState
    started_at: str = Field(examples=[_TIME])
    updated_at: str = Field(examples=[_TIME])
    completed_at: str | None = Field(examples=[None])
    idempotency_key: str | None = Field(examples=["6d3f"])


class WorkflowJobView(WorkflowJobSummary):
    """A workflow job."""

    webhook: WebhookView
    stepper: list[StepperView] = Field(description="All steps in order.")
    pagination: PaginationView
    undo: UndoView
    metadata: dict[str, Any] = Field(
        description="Members set by the client, `completed_steps` and `last_result_by_step`; "
        "`source_count` and `proposal_count` if the workflow has such steps.",
        examples=[
            {
                MetadataField.SOURCE_COUNT: 3,
                MetadataField.PROPOSAL_COUNT: 128,
                MetadataField.COMPLETED_STEPS: [SOURCES_STEP],
            }
        ],
    )


class JobStatusView(BaseModel):
    """A workflow job, as returned by create and status."""

    success: bool = Field(True, examples=[True])
    job: WorkflowJobView


class ItemView(BaseModel):
    """An item that a step created."""

    id: str = Field(examples=["p_001"])
    type: str = Field(examples=["proposal"])
    status: ItemStatus
    payload: Any = Field(examples=[{"from": "DLQ", "to": "dead letter queue"}])
    version: int = Field(description="Increases with each change.", examples=[3])
    undo_token: str | None = Field(
        description="Undoes the last change; null if there is none.", examples=["undo_p_001"]
    )


class BulkView(BaseModel):
    """Whether bulk decisions are supported, and the last one."""

    supported: bool
    last_operation: str | None = Field(examples=["approve_selected"])


class OntologyEditsView(BaseModel):
    """Whether items can be edited, and the number of changes not applied yet."""

    supported: bool
    granular: bool
    pending_changes: int = Field(examples=[4])


class ResultBody(BaseModel):
    """Result of a step, with a page of its items."""

    summary: str = Field(examples=["Generated 128 proposals"])
    items: list[ItemView]
    bulk: BulkView
    ontology_edits: OntologyEditsView
    pagination: PageView


class ResultView(BaseModel):
    """Results of a workflow job."""

    success: bool = Field(examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    result: ResultBody
    errors: list[StepErrorView]


class ExecutionView(BaseModel):
    """Result of an execution."""

    success: bool = Field(examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    execution_id: str | None = Field(examples=["ex_9f2c41d0"])
    result: ResultBody
    errors: list[StepErrorView]


class WorkflowEventView(BaseModel):
    """An event of a workflow job."""

    id: str = Field(description="For `Last-Event-ID` of the event stream.", examples=["12-0"])
    seq: int = Field(description="Sequence number within the job.", examples=[12])
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
    """A page of workflow jobs, newest first."""

    success: bool = Field(True, examples=[True])
    jobs: list[WorkflowJobSummary]
    pagination: PageView


_TOKEN = "undo_9f2c41d0"


class StartedStepView(BaseModel):
    """A step that was started automatically."""

    model_config = ConfigDict(extra="ignore")

    step: str = Field(examples=["apply"])
    execution_id: str = Field(examples=["ex_9f2c41d0"])


class DecisionsView(BaseModel):
    """Result of decisions, and the state of the review."""

    applied: int = Field(
        description="Number of items that now have the requested status.", examples=[2]
    )
    failed: int = Field(description="Number of items that failed; see `errors`.", examples=[0])
    undo_token: str | None = Field(description="Undoes the whole operation.", examples=[_TOKEN])
    pending: int = Field(description="Number of undecided items.", examples=[126])
    completed: bool = Field(description="Whether the review has ended.")
    started: StartedStepView | None = Field(
        description="The step that was started after the review."
    )


class BulkResponse(BaseModel):
    """Result of a bulk operation; `detail` is the reason if it was refused as a whole."""

    success: bool = Field(description="False if an item failed.", examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    applied: int = Field(
        description="Number of items that now have the requested status.", examples=[2]
    )
    failed: int = Field(description="Number of items that failed; see `errors`.", examples=[0])
    items: list[ItemView] = Field(
        description="The first 500 changed items; after a refusal, the current items."
    )
    errors: list[StepErrorView]
    undo_token: str | None = Field(description="Undoes the whole operation.", examples=[_TOKEN])
    pending: int = Field(description="Number of undecided items.", examples=[126])
    completed: bool = Field(description="Whether the review has ended.")
    started: StartedStepView | None = Field(
        description="The step that was started after the review."
    )


class ExecuteResponse(ExecutionView):
    """Result of an execution; the members after `errors` are present for decisions in a review."""

    applied: int | None = None
    failed: int | None = None
    undo_token: str | None = None
    pending: int | None = None
    completed: bool | None = None
    started: StartedStepView | None = None


class EditResponse(BaseModel):
    """Result of an edit."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    step: str = Field(examples=["proposals"])
    item: ItemView
    undo_token: str | None = Field(examples=["undo_p_001"])
    ontology_edits: OntologyEditsView
    errors: list[StepErrorView] = Field(default_factory=list)


class UndoResponse(BaseModel):
    """Result of an undo."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    undo_token: str = Field(examples=[_TOKEN])
    undone: list[str] = Field(description="Ids of the reverted items.", examples=[["p_001"]])
    items: list[ItemView] = Field(description="The first 500 reverted items.")
    undo: UndoView = Field(description="Operations that can still be undone.")
    status: WorkflowStatus
    draft_state: DraftState
    errors: list[StepErrorView] = Field(default_factory=list)


class CancelResponse(BaseModel):
    """Result of a cancel."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    job: WorkflowJobView


def to_json_dict(view: BaseModel) -> dict[str, Any]:
    """A view as a dict of JSON values."""
    return view.model_dump(mode="json")


class StepDefinitionView(BaseModel):
    """Declaration of a step."""

    name: str = Field(examples=[SOURCES_STEP])
    kind: StepKind = Field(description="Whether a worker runs it, or a person reviews.")
    item_type: str = Field(description="`type` of its items.", examples=["source"])
    weight: float = Field(description="Share of the job's progress, 0 to 1.", examples=[0.1])
    proposes: bool = Field(description="Whether its items are proposals.")
    reviews: str | None = Field(description="For a review: the step whose items are reviewed.")
    options_schema: Any = Field(description="JSON Schema of its options; null if any are accepted.")


class WorkflowDefinitionView(BaseModel):
    """A workflow."""

    name: str = Field(examples=[MEMORY_FIRST])
    description: str
    steps: list[StepDefinitionView] = Field(description="Steps in order.")


class DefinitionListView(BaseModel):
    """All workflows, by name."""

    success: bool = Field(True, examples=[True])
    workflows: list[WorkflowDefinitionView]


def definition_list(known: Sequence[WorkflowDefinition]) -> bytes:
    """The response with all workflows, as JSON."""
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
