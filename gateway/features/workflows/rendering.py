"""Renders workflow jobs, items and events; reads and writes cursors."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import Query

from sluice.common import codec
from sluice.common.codec import Event
from sluice.common.contracts.webhooks import DEAD_LETTER_CURSOR_PREFIX, DELIVERY_CURSOR_PREFIX
from sluice.common.contracts.workflow.fields import MetadataField
from sluice.common.contracts.workflow.statuses import (
    EVENT_CURSOR_PREFIX,
    JOB_CURSOR_PREFIX,
    JOB_ID_PREFIX,
    RESULT_CURSOR_PREFIX,
    SOURCES_STEP,
    UNDO_PREFIX,
    StepKind,
    StepStatus,
    WorkflowError,
)
from sluice.common.features.workflows.reader import MAX_PAGE_SIZE
from sluice.common.features.workflows.records import (
    EventPage,
    Item,
    ItemPage,
    JobCursor,
    JobPage,
    PageInfo,
    StepRecord,
    WorkflowJob,
)
from sluice.common.features.workflows.webhooks.store import DeliveryCursor
from sluice.gateway.features.workflows.lookup import WorkflowProblem
from sluice.gateway.features.workflows.models.responses import (
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
    WorkflowJobSummary,
    WorkflowJobView,
)
from sluice.gateway.http.error_formats import ErrorItem

#: No list is longer.
MOST_OFFSET: Final = 10_000_000
#: No stream entry has this id, and Redis rejects a range that ends before it.
_OLDEST: Final = (0, 0)
_NUMBER: Final = re.compile(r"\A(0|[1-9][0-9]{0,14})\Z")
_JOB_POSITION: Final = re.compile(
    r"\A([1-9][0-9]{0,14})_([0-9]{8}_[0-9]{3,15})(?:_([1-9][0-9]{0,7}))?\Z"
)
_DELIVERY_POSITION: Final = re.compile(r"\A(0|[1-9][0-9]{0,14})_([1-9][0-9]{0,7})\Z")

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="Maximum number of entries.")]
Offset = Annotated[
    int,
    Query(
        ge=0,
        le=MOST_OFFSET,
        description="Number of entries to skip; cannot be combined with `cursor`.",
    ),
]
Cursor = Annotated[
    str | None, Query(max_length=64, description="`next_cursor` of the previous page.")
]


def after_item(cursor: str | None, offset: int) -> int:
    """The number after `res_`; 0 without a cursor."""
    return _after(RESULT_CURSOR_PREFIX, cursor, offset)


def after_event(cursor: str | None, offset: int) -> int:
    """The number after `evt_`; 0 without a cursor."""
    return _after(EVENT_CURSOR_PREFIX, cursor, offset)


def before_job(cursor: str | None, offset: int) -> JobCursor | None:
    rest = _rest(JOB_CURSOR_PREFIX, cursor, offset)
    if rest is None:
        return None
    match = _JOB_POSITION.match(rest)
    if match is None:
        raise _invalid(JOB_CURSOR_PREFIX)
    return JobCursor(int(match[1]), JOB_ID_PREFIX + match[2], int(match[3] or 0))


def before_dead_letter(cursor: str | None, offset: int) -> str | None:
    rest = _rest(DEAD_LETTER_CURSOR_PREFIX, cursor, offset)
    if rest is not None and (codec.parse_stream_id(rest) or _OLDEST) == _OLDEST:
        raise _invalid(DEAD_LETTER_CURSOR_PREFIX)
    return rest


def after_delivery(cursor: str | None, offset: int) -> DeliveryCursor | None:
    rest = _rest(DELIVERY_CURSOR_PREFIX, cursor, offset)
    if rest is None:
        return None
    match = _DELIVERY_POSITION.match(rest)
    if match is None:
        raise _invalid(DELIVERY_CURSOR_PREFIX)
    return DeliveryCursor(int(match[1]), int(match[2]))


def item_cursor(seq: int) -> str:
    """The cursor of a page that ends with this item."""
    return f"{RESULT_CURSOR_PREFIX}{seq}"


def event_cursor(seq: int) -> str:
    """The cursor of a page that ends with this event."""
    return f"{EVENT_CURSOR_PREFIX}{seq}"


def job_cursor(position: JobCursor) -> str:
    """The cursor of a page of jobs that ends here."""
    cursor = f"{JOB_CURSOR_PREFIX}{position.ms}_{position.job_id.removeprefix(JOB_ID_PREFIX)}"
    return f"{cursor}_{position.offset}" if position.offset else cursor


def delivery_cursor(position: DeliveryCursor) -> str:
    """The cursor of a page of webhook deliveries that ends here."""
    return f"{DELIVERY_CURSOR_PREFIX}{position.due_ms}_{position.skip}"


def items_page(page: PageInfo) -> PageView:
    """The pagination of results."""
    return _view(page, item_cursor(page.last))


def events_page(page: PageInfo) -> PageView:
    """The pagination of events."""
    return _view(page, event_cursor(page.last))


def _view(page: PageInfo, cursor: str) -> PageView:
    return PageView(
        count=page.count,
        has_more=page.has_more,
        next_cursor=cursor if page.has_more else None,
        total=page.total,
    )


def _after(prefix: str, cursor: str | None, offset: int) -> int:
    rest = _rest(prefix, cursor, offset)
    if rest is None:
        return 0
    if not _NUMBER.match(rest):
        raise _invalid(prefix)
    return int(rest)


def _rest(prefix: str, cursor: str | None, offset: int) -> str | None:
    if cursor is None:
        return None
    if not cursor.startswith(prefix):
        raise _invalid(prefix)
    if offset:
        raise WorkflowProblem(
            400,
            WorkflowError.PAGINATION_CONFLICT,
            "A cursor cannot be combined with an offset; leave out the offset.",
            "offset",
        )
    return cursor[len(prefix) :]


def _invalid(prefix: str) -> WorkflowProblem:
    return WorkflowProblem(
        400,
        WorkflowError.INVALID_CURSOR,
        f"This cursor is not valid for this list. Pass `next_cursor` of the previous page "
        f"({prefix}…), or no cursor for the first page.",
        "cursor",
    )


#: Statuses of steps that ended without success.
_UNSUCCESSFUL = (StepStatus.FAILED, StepStatus.CANCELLED)
_WORDS = {
    StepStatus.NOT_STARTED: "Step '{}' has not been executed",
    StepStatus.RUNNING: "Step '{}' is running",
    StepStatus.WAITING_INPUT: "Step '{}' waits for decisions",
    StepStatus.COMPLETE: "Step '{}' is complete",
    StepStatus.FAILED: "Step '{}' failed",
    StepStatus.CANCELLED: "Step '{}' was cancelled",
}


def rfc3339(ms: int) -> str:
    """Unix milliseconds in RFC 3339: UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(ms // 1000, _YEAR_9999_S)))


_YEAR_9999_S = 253_402_300_799


def job_status(job: WorkflowJob) -> dict[str, Any]:
    return JobStatusView(job=_job_view(job)).model_dump()


def job_list(page: JobPage, counted: bool) -> dict[str, Any]:
    """A page of jobs. `counted`: the list is not filtered, so its total is known."""
    return JobListView(
        jobs=[WorkflowJobSummary(**_brief(job)) for job in page.jobs],
        pagination=PageView(
            count=len(page.jobs),
            has_more=page.last is not None,
            next_cursor=None if page.last is None else job_cursor(page.last),
            total=page.total if counted else None,
        ),
    ).model_dump()


def _brief(job: WorkflowJob) -> dict[str, Any]:
    brief = WorkflowJobSummary(
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
        pagination=PaginationView(events=events_page(job.events), results=items_page(job.items)),
        undo=UndoView(depth=job.undo_depth, last_undo_token=job.last_undo_token or None),
        metadata=_metadata(job),
    )


def _stepper(step: StepRecord) -> StepperView:
    failed = step.status in _UNSUCCESSFUL and step.errors
    return StepperView(
        name=step.name,
        status=step.status,
        updated_at=rfc3339(step.updated_ms),
        attempt=step.attempt,
        execution_id=step.execution or None,
        error=error_view(step.errors[0]) if failed else None,
    )


def _metadata(job: WorkflowJob) -> dict[str, Any]:
    """The client's metadata and that of the workflow, which takes precedence."""
    own: dict[str, Any] = {}
    sources = job.steps.get(SOURCES_STEP)
    if sources is not None:
        own[MetadataField.SOURCE_COUNT] = sources.count
    proposing = [step for step in job.definition.steps if step.proposes]
    if proposing:
        own[MetadataField.PROPOSAL_COUNT] = sum(job.step(step).count for step in proposing)
    own[MetadataField.COMPLETED_STEPS] = job.completed_steps
    own[MetadataField.LAST_RESULT_BY_STEP] = {
        name: dict(
            StepOutcomeView(
                summary=job.steps[name].summary,
                count=job.steps[name].count,
                completed_at=rfc3339(job.steps[name].updated_ms),
            )
        )
        for name in job.completed_steps
    }
    return {**job.metadata, **own}


def error_view(stored: Mapping[str, Any]) -> StepErrorView:
    """An error of a step; additional members follow the standard ones."""
    own = {name: stored.get(name) for name in ErrorItem.model_fields}
    text = {name: value for name, value in own.items() if isinstance(value, str)}
    item = ErrorItem.model_construct(**{**_DEFAULT_ERROR, **text})
    rest = {name: value for name, value in stored.items() if name not in own}
    return StepErrorView(**dict(item), **rest)


_DEFAULT_ERROR = dict(
    ErrorItem(code=WorkflowError.STEP_FAILED.value, message="The step gave no reason.")
)


def summary_of(step: StepRecord) -> str:
    """The summary of a complete step; otherwise its status in words."""
    if step.status is StepStatus.COMPLETE and step.summary:
        return step.summary
    words = _WORDS[step.status].format(step.name)
    if step.status in _UNSUCCESSFUL and step.errors:
        return f"{words}: {error_view(step.errors[0]).message}"
    return words


def item_view(item: Item) -> ItemView:
    return ItemView(
        id=item.id,
        type=item.type,
        status=item.status,
        payload=codec.parse_payload(item.payload),
        version=item.version,
        undo_token=UNDO_PREFIX + item.id if item.undoable else None,
    )


def result_body(
    job: WorkflowJob, step: str, page: ItemPage, summary: str | None = None
) -> ResultBody:
    """The result of a step, with a page of items."""
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
        pagination=items_page(page.page),
    )


def result(job: WorkflowJob, step: str, page: ItemPage) -> dict[str, Any]:
    """The response with results of a step."""
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
    """The response to an execute request. `errors`: those of the step unless given."""
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
    return EventListView(
        job_id=job_id,
        events=[_event_view(event) for event in page.events],
        pagination=events_page(page.page),
    ).model_dump()


def _event_view(event: Event) -> WorkflowEventView:
    position = codec.parse_stream_id(event.id) or (0, 0)
    return WorkflowEventView(
        id=event.id,
        seq=position[0],
        type=event.type,
        at=rfc3339(event.ts),
        step=event.step or None,
        data=codec.parse_payload(event.data or b"{}"),
    )
