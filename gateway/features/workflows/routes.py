"""`/api/workflow`: workflow jobs, their steps, proposals, results and events."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.jobs import JobField
from sluice.common.contracts.workflow.fields import WorkflowJobField
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import ItemStatus, WorkflowError, WorkflowStatus
from sluice.common.features.workflows.listing import WorkflowJobFilter, WorkflowLister
from sluice.common.features.workflows.reader import EVENTS_PAGE_SIZE, ITEMS_PAGE_SIZE
from sluice.common.features.workflows.records import WorkflowJob
from sluice.common.features.workflows.scripts import WORKFLOW_SCRIPT
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.events.frames import workflow_source
from sluice.gateway.events.response import (
    SEND_TIMEOUT_S,
    EventStreamResponse,
    hello_frame,
    negotiate_media_type,
    resume_position,
    stream_events,
)
from sluice.gateway.feature import Feature, FeatureContext
from sluice.gateway.features.workflows import create, decide, edit, execute, rendering, webhooks
from sluice.gateway.features.workflows import undo as undoing
from sluice.gateway.features.workflows.lookup import (
    WorkflowProblem,
    WorkflowServices,
    find_job,
    workflows_of,
)
from sluice.gateway.features.workflows.models.responses import (
    BulkResponse,
    CancelResponse,
    DefinitionListView,
    EditResponse,
    EventListView,
    ExecuteResponse,
    JobListView,
    JobStatusView,
    ResultView,
    UndoResponse,
    definition_list,
)
from sluice.gateway.features.workflows.openapi import (
    BULK,
    CANCEL,
    CREATE,
    EVENTS,
    EXECUTE,
    LIST,
    ONTOLOGY,
    RESULTS,
    STATUS,
    UNDO,
    WATCH,
    BulkBody,
    CancelBody,
    CreateBody,
    ExecuteBody,
    IfMatch,
    JobPath,
    OntologyBody,
    ProposalPath,
    StepPath,
    UndoBody,
)
from sluice.gateway.features.workflows.rendering import Cursor, Limit, Offset
from sluice.gateway.http import paths
from sluice.gateway.http.headers import IfNoneMatch, Prefer, json_with_etag
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import DirectRoute, JsonRoute
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.state import state_of

router = APIRouter(route_class=JsonRoute, tags=["workflows"])
#: The event stream reads the request itself.
_streams = APIRouter(route_class=DirectRoute, tags=["workflows"])


@router.post(
    paths.WORKFLOW_CANCEL, response_model=CancelResponse, summary="Cancel a workflow job", **CANCEL
)
async def cancel_workflow(request: Request, job_id: JobPath, body: CancelBody) -> Response:
    """Cancels a workflow job permanently. Its running step is asked to stop."""
    return await execute.cancel(request, job_id, body)


_JSON = "application/json"


@router.get(
    paths.WORKFLOW_DEFINITIONS,
    response_model=DefinitionListView,
    summary="List workflows",
    responses=problem_responses(_503="Redis does not answer."),
)
async def list_definitions(request: Request) -> Response:
    """Returns the built-in workflow and those that workers have declared."""
    known = await workflows_of(request).catalog.all()
    return Response(definition_list(known), 200, media_type=_JSON)


_MOST_NAME = 64


@router.post(
    paths.WORKFLOW_JOBS, response_model=JobStatusView, summary="Create a workflow job", **CREATE
)
async def create_workflow(request: Request, body: CreateBody) -> Response:
    """Creates a workflow job. Idempotent with an Idempotency-Key."""
    return await create.create(request, body)


@router.get(
    paths.WORKFLOW_STATUS, response_model=JobStatusView, summary="Read a workflow job", **STATUS
)
async def read_status(
    request: Request, job_id: JobPath, if_none_match: IfNoneMatch = None
) -> Response:
    """Returns the state of a workflow job."""
    body = codec.dumps(rendering.job_status(await find_job(request, job_id)))
    return json_with_etag(body, if_none_match, wildcard=False)


@router.get(paths.WORKFLOW_JOBS, response_model=JobListView, summary="List workflow jobs", **LIST)
async def list_workflows(
    request: Request,
    status: Annotated[WorkflowStatus | None, Query(description="Only jobs in this status.")] = None,
    workflow: Annotated[
        str | None, Query(max_length=_MOST_NAME, description="Only jobs of this workflow.")
    ] = None,
    limit: Limit = ITEMS_PAGE_SIZE,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Response:
    """Returns workflow jobs, newest first. A page may have fewer than `limit` jobs although more
    follow."""
    state, caller = state_of(request), caller_of(request)
    before = rendering.before_job(cursor, offset)
    wanted = WorkflowJobFilter(None if caller.sees_all else caller.tenant, status, workflow)
    lister = WorkflowLister(state.client, workflows_of(request).reader)
    page = await lister.page(wanted, limit, before, offset)
    return Response(codec.dumps(rendering.job_list(page, wanted.all)), 200, media_type=_JSON)


@router.post(
    paths.WORKFLOW_BULK, response_model=BulkResponse, summary="Decide on many proposals", **BULK
)
async def decide_on_many(request: Request, job_id: JobPath, body: BulkBody) -> Response:
    """Approves, rejects or resets proposals: those listed, those that match a filter, or all."""
    return await decide.decide_in_bulk(request, job_id, body)


@router.patch(
    paths.WORKFLOW_ONTOLOGY, response_model=EditResponse, summary="Edit a proposal", **ONTOLOGY
)
async def edit_proposal(
    request: Request,
    job_id: JobPath,
    proposal_id: ProposalPath,
    body: OntologyBody,
    if_match: IfMatch = None,
) -> Response:
    """Edits a proposal, and approves it unless `auto_approve` is false."""
    return await edit.edit(request, job_id, proposal_id, body, if_match)


@router.get(
    paths.WORKFLOW_RESULTS,
    response_model=ResultView,
    summary="Read the results of a workflow job",
    **RESULTS,
)
async def read_results(
    request: Request,
    job_id: JobPath,
    step: Annotated[
        str | None,
        Query(max_length=_MOST_NAME, description="Only items of this step. Default: all items."),
    ] = None,
    status: Annotated[ItemStatus | None, Query(description="Only items in this status.")] = None,
    limit: Limit = ITEMS_PAGE_SIZE,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Response:
    """Returns items in the order of their creation. Without `step`, returns the items of all steps;
    `step` in the response is then the current one."""
    after = rendering.after_item(cursor, offset)
    job = await find_job(request, job_id)
    if step is not None and job.definition.step(step) is None:
        raise _no_such_step(job)
    page = await workflows_of(request).reader.items(
        job.job_id, step, after, limit, status, offset, job.definition
    )
    body = rendering.result(job, step or job.current_step, page)
    return Response(codec.dumps(body), 200, media_type=_JSON)


@router.get(
    paths.WORKFLOW_EVENTS,
    response_model=EventListView,
    summary="Read the events of a workflow job",
    **EVENTS,
)
async def read_events(
    request: Request,
    job_id: JobPath,
    limit: Limit = EVENTS_PAGE_SIZE,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Response:
    """Returns the events of a job, oldest first. About 10,000 events are kept."""
    after = rendering.after_event(cursor, offset)
    job = await find_job(request, job_id)
    page = await workflows_of(request).reader.events(job.job_id, after, limit, offset)
    return Response(codec.dumps(rendering.event_list(job.job_id, page)), 200, media_type=_JSON)


def _no_such_step(job: WorkflowJob) -> WorkflowProblem:
    known = ", ".join(step.name for step in job.definition.steps)
    return WorkflowProblem(
        422,
        WorkflowError.UNKNOWN_STEP,
        f"Workflow {job.definition.name} has no such step. Its steps: {known}.",
        WorkflowFact.STEP,
    )


@router.post(
    paths.WORKFLOW_EXECUTE, response_model=ExecuteResponse, summary="Execute a step", **EXECUTE
)
async def execute_step(
    request: Request,
    job_id: JobPath,
    step_name: StepPath,
    body: ExecuteBody,
    prefer: Prefer = None,
) -> Response:
    """Executes a step, after the incomplete steps before it. For a review, decides on proposals."""
    return await execute.execute(request, job_id, step_name, body, prefer)


#: Statuses in which a job does not continue by itself. (A failed job may be executed again.)
_ENDED = (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)


@_streams.get(paths.WORKFLOW_STREAM, summary="Watch a workflow job", **WATCH)
async def watch_workflow(request: Request) -> Response:
    """Streams the stored events of the job, then live ones, until the job has ended."""
    state = state_of(request)
    media_type = negotiate_media_type(request)
    after = resume_position(request)
    job = await find_job(request, request.path_params[JobField.JOB_ID])
    ended = job.status in _ENDED
    source = workflow_source(workflows_of(request).reader.keys, job.job_id)
    if after is not None:
        last = await state.hub.last_position(source)
        if ended and after == last:
            return Response(None, 204)
        # An id from before a FLUSHALL or a restored backup may be beyond the end of the stream.
        # If the job has ended, the client then gets all events.
        after = (0, 0) if ended and after > last else min(after, last)
        state.hub.metrics.resumes += 1
    check_streams(request)
    facts = {
        WorkflowFact.JOB_ID: job.job_id,
        WorkflowFact.STATUS: job.status.value,
        WorkflowJobField.CURRENT_STEP: job.current_step,
        "progress": job.progress,
    }
    frames = stream_events(
        state,
        caller_of(request),
        source,
        after or (0, 0),
        hello_frame(state, facts),
        media_type,
        ended=ended,
    )
    return EventStreamResponse(state.hub, frames, media_type, SEND_TIMEOUT_S)


@router.post(paths.WORKFLOW_UNDO, response_model=UndoResponse, summary="Undo a change", **UNDO)
async def undo(
    request: Request, job_id: JobPath, body: UndoBody, prefer: Prefer = None
) -> Response:
    """Undoes the last change of an item, or a whole operation. Each token works once."""
    return await undoing.undo(request, job_id, body, prefer)


def _build(context: FeatureContext) -> WorkflowServices:
    batcher = context.connections.script_batcher(WORKFLOW_SCRIPT)
    return WorkflowServices.build(context.state, batcher)


FEATURE: Final = Feature([router, _streams, webhooks.router], "workflows", build=_build)
