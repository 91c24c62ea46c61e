"""What answers about workflow jobs look like; the OpenAPI page is made from these."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.workflow import (
    SOURCES_STEP,
    DeliveryStatus,
    DraftState,
    Fact,
    ItemStatus,
    MetadataField,
    StepStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from gateway.workflow.error_view import ErrorItem

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


class WorkflowJobBrief(BaseModel):
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


class WorkflowJobView(WorkflowJobBrief):
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
                MetadataField.SOURCE_COUNT.value: 3,
                MetadataField.PROPOSAL_COUNT.value: 128,
                MetadataField.COMPLETED_STEPS.value: [SOURCES_STEP],
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
    data: Any = Field(examples=[{Fact.SUMMARY.value: "…", Fact.COUNT.value: 12}])


class EventListView(BaseModel):
    """A page of a job's events, oldest first."""

    success: bool = Field(True, examples=[True])
    job_id: str = Field(examples=[_ID])
    events: list[WorkflowEventView]
    pagination: PageView


class JobListView(BaseModel):
    """A page of jobs, the newest first."""

    success: bool = Field(True, examples=[True])
    jobs: list[WorkflowJobBrief]
    pagination: PageView
