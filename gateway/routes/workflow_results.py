"""`/api/workflow/jobs/{job_id}/results` and `/events`: what a workflow job came to, and how."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.workflow import Fact, ItemStatus, WorkflowError
from common.workflow.reader import EVENTS_PAGE, ITEMS_PAGE
from common.workflow.records import WorkflowJob
from gateway.openapi_workflow import EVENTS, RESULTS, JobPath
from gateway.state import state_of
from gateway.workflow import paging, paths, rendering
from gateway.workflow.envelope import WorkflowProblem
from gateway.workflow.lookup import find_job
from gateway.workflow.models import EventListView, ResultView
from gateway.workflow.paging import Cursor, Limit, Offset

_JSON = "application/json"
_MOST_NAME = 64

router = APIRouter(tags=["workflows"])


@router.get(
    paths.RESULTS, response_model=ResultView, summary="Read a workflow job's results", **RESULTS
)
async def read_results(
    request: Request,
    job_id: JobPath,
    step: Annotated[
        str | None,
        Query(max_length=_MOST_NAME, description="Only items of this step. Default: all items."),
    ] = None,
    status: Annotated[ItemStatus | None, Query(description="Only items in this status.")] = None,
    limit: Limit = ITEMS_PAGE,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Response:
    """Items in the order in which they came; without a step all of them, and `step` is the current
    one."""
    after = paging.after_item(cursor, offset)
    job = await find_job(request)
    if step is not None and job.definition.step(step) is None:
        raise _no_such_step(job)
    page = await state_of(request).workflow_reader.items(
        job.job_id, step, after, limit, status, offset, job.definition
    )
    body = rendering.result(job, step or job.current_step, page)
    return Response(codec.dumps(body), 200, media_type=_JSON)


@router.get(
    paths.EVENTS, response_model=EventListView, summary="Read a workflow job's events", **EVENTS
)
async def read_events(
    request: Request,
    job_id: JobPath,
    limit: Limit = EVENTS_PAGE,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Response:
    """Everything that happened to a job, oldest first; the last 10,000 or so are kept."""
    after = paging.after_event(cursor, offset)
    job = await find_job(request)
    page = await state_of(request).workflow_reader.events(job.job_id, after, limit, offset)
    return Response(codec.dumps(rendering.event_list(job.job_id, page)), 200, media_type=_JSON)


def _no_such_step(job: WorkflowJob) -> WorkflowProblem:
    known = ", ".join(step.name for step in job.definition.steps)
    return WorkflowProblem(
        422,
        WorkflowError.UNKNOWN_STEP,
        f"Workflow {job.definition.name} has no such step. Its steps: {known}.",
        Fact.STEP.value,
    )
