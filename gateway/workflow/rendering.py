"""Workflow jobs, their items and events as answers show them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from common import codec
from common.codec import Event
from common.contracts.workflow import (
    SOURCES_STEP,
    UNDO_PREFIX,
    MetadataField,
    StepKind,
    StepStatus,
    WorkflowError,
)
from common.workflow.records import (
    EventPage,
    Item,
    ItemPage,
    JobPage,
    StepRecord,
    WorkflowJob,
)
from gateway.workflow import paging
from gateway.workflow.error_view import ErrorItem
from gateway.workflow.models import (
    BulkView,
    EventListView,
    ExecutionView,
    ItemView,
    JobListView,
    JobStatusView,
    OntologyEditsView,
    PageView,
    PaginationView,
    ResultBody,
    ResultView,
    StepErrorView,
    StepOutcomeView,
    StepperView,
    UndoView,
    WebhookView,
    WorkflowEventView,
    WorkflowJobBrief,
    WorkflowJobView,
)

#: Steps that ended without success.
_ENDED_BADLY = (StepStatus.FAILED, StepStatus.CANCELLED)
_WORDS = {
    StepStatus.NOT_STARTED: "Step '{}' has not been executed",
    StepStatus.RUNNING: "Step '{}' is running",
    StepStatus.WAITING_INPUT: "Step '{}' waits for decisions",
    StepStatus.COMPLETE: "Step '{}' is complete",
    StepStatus.FAILED: "Step '{}' failed",
    StepStatus.CANCELLED: "Step '{}' was cancelled",
}


def rfc3339(ms: int) -> str:
    """Milliseconds as answers write times: UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(ms // 1000, _YEAR_9999_S)))


_YEAR_9999_S = 253_402_300_799


def job_status(job: WorkflowJob) -> dict[str, Any]:
    """The answer about a job."""
    return JobStatusView(job=_job_view(job)).model_dump()


def job_list(page: JobPage, counted: bool) -> dict[str, Any]:
    """The answer with many jobs; `counted`: whether the page is of all there are."""
    return JobListView(
        jobs=[WorkflowJobBrief(**_brief(job)) for job in page.jobs],
        pagination=PageView(
            count=len(page.jobs),
            has_more=page.last is not None,
            next_cursor=None if page.last is None else paging.job_cursor(page.last),
            total=page.total if counted else None,
        ),
    ).model_dump()


def _brief(job: WorkflowJob) -> dict[str, Any]:
    brief = WorkflowJobBrief(
        job_id=job.job_id,
        workflow=job.definition.name,
        status=job.status,
        current_step=job.current_step,
        progress=job.progress,
        draft_state=job.draft_state,
        started_at=rfc3339(job.started_ms),
        updated_at=rfc3339(job.updated_ms),
        completed_at=rfc3339(job.completed_ms) if job.completed_ms else None,
        idempotency_key=job.idempotency_key or None,
    )
    return dict(brief)


def _job_view(job: WorkflowJob) -> WorkflowJobView:
    return WorkflowJobView(
        **_brief(job),
        webhook=WebhookView(
            enabled=bool(job.webhook_url),
            url=job.webhook_url or None,
            last_delivery_status=job.webhook_status,
            last_delivery_at=rfc3339(job.webhook_ms) if job.webhook_ms else None,
        ),
        stepper=[_stepper(job.step(step)) for step in job.definition.steps],
        pagination=PaginationView(
            events=paging.events_page(job.events), results=paging.items_page(job.items)
        ),
        undo=UndoView(depth=job.undo_depth, last_undo_token=job.last_undo_token or None),
        metadata=_metadata(job),
    )


def _stepper(step: StepRecord) -> StepperView:
    failed = step.status in _ENDED_BADLY and step.errors
    return StepperView(
        name=step.name,
        status=step.status,
        updated_at=rfc3339(step.updated_ms),
        attempt=step.attempt,
        execution_id=step.execution or None,
        error=error_view(step.errors[0]) if failed else None,
    )


def _metadata(job: WorkflowJob) -> dict[str, Any]:
    """The client's, and what any workflow can say of itself; ours win."""
    ours: dict[str, Any] = {}
    sources = job.steps.get(SOURCES_STEP)
    if sources is not None:
        ours[MetadataField.SOURCE_COUNT.value] = sources.count
    proposing = [step for step in job.definition.steps if step.proposes]
    if proposing:
        ours[MetadataField.PROPOSAL_COUNT.value] = sum(job.step(step).count for step in proposing)
    ours[MetadataField.COMPLETED_STEPS.value] = job.completed_steps
    ours[MetadataField.LAST_RESULT_BY_STEP.value] = {
        name: dict(
            StepOutcomeView(
                summary=job.steps[name].summary,
                count=job.steps[name].count,
                completed_at=rfc3339(job.steps[name].updated_ms),
            )
        )
        for name in job.completed_steps
    }
    return {**job.metadata, **ours}


def error_view(stored: Mapping[str, Any]) -> StepErrorView:
    """An error that a step left; whatever else it says comes after what every error says."""
    own = {name: stored.get(name) for name in ErrorItem.model_fields}
    text = {name: value for name, value in own.items() if isinstance(value, str)}
    said = ErrorItem.model_construct(**{**_NOTHING_SAID, **text})
    rest = {name: value for name, value in stored.items() if name not in own}
    return StepErrorView(**dict(said), **rest)


_NOTHING_SAID = dict(
    ErrorItem(code=WorkflowError.STEP_FAILED.value, message="The step did not say why.")
)


def summary_of(step: StepRecord) -> str:
    """What a step came to; where it has not come to anything, how it stands."""
    if step.status is StepStatus.COMPLETE and step.summary:
        return step.summary
    words = _WORDS[step.status].format(step.name)
    if step.status in _ENDED_BADLY and step.errors:
        return f"{words}: {error_view(step.errors[0]).message}"
    return words


def item_view(item: Item) -> ItemView:
    """An item."""
    return ItemView(
        id=item.id,
        type=item.type,
        status=item.status,
        payload=codec.payload_object(item.payload),
        version=item.version,
        undo_token=UNDO_PREFIX + item.id if item.undoable else None,
    )


def result_body(
    job: WorkflowJob, step: str, page: ItemPage, summary: str | None = None
) -> ResultBody:
    """What a step came to, with a page of items."""
    declared = job.definition.step(step)
    reviewed = declared is not None and (declared.proposes or declared.kind is StepKind.REVIEW)
    return ResultBody(
        summary=summary_of(job.steps[step]) if summary is None else summary,
        items=[item_view(item) for item in page.items],
        bulk=BulkView(
            supported=reviewed,
            last_operation=(job.last_operation or None) if reviewed else None,
        ),
        ontology_edits=OntologyEditsView(
            supported=reviewed,
            granular=reviewed,
            pending_changes=job.pending_changes if reviewed else 0,
        ),
        pagination=paging.items_page(page.page),
    )


def result(job: WorkflowJob, step: str, page: ItemPage) -> dict[str, Any]:
    """The answer with results of a step."""
    return ResultView(
        success=True,
        job_id=job.job_id,
        step=step,
        result=result_body(job, step, page),
        errors=[error_view(error) for error in job.steps[step].errors],
    ).model_dump()


def execution(
    job: WorkflowJob,
    step: str,
    execution_id: str | None,
    page: ItemPage,
    *,
    summary: str | None = None,
    success: bool = True,
    errors: Sequence[StepErrorView] | None = None,
) -> dict[str, Any]:
    """The answer to an execute; its errors are the step's unless given."""
    if errors is None:
        errors = [error_view(error) for error in job.steps[step].errors]
    return ExecutionView(
        success=success,
        job_id=job.job_id,
        step=step,
        execution_id=execution_id,
        result=result_body(job, step, page, summary),
        errors=list(errors),
    ).model_dump()


def event_list(job_id: str, page: EventPage) -> dict[str, Any]:
    """The answer with events."""
    return EventListView(
        job_id=job_id,
        events=[_event_view(event) for event in page.events],
        pagination=paging.events_page(page.page),
    ).model_dump()


def _event_view(event: Event) -> WorkflowEventView:
    position = codec.stream_id(event.id) or (0, 0)
    return WorkflowEventView(
        id=event.id,
        seq=position[0],
        type=event.type,
        at=rfc3339(event.ts),
        step=event.step or None,
        data=codec.payload_object(event.data or b"{}"),
    )
