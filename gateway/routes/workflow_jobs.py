"""`/api/workflow/jobs`: making a workflow job, its status, the list of all."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.workflow import WorkflowStatus
from common.workflow.listing import Wanted, WorkflowLister
from common.workflow.reader import ITEMS_PAGE
from gateway.callers import caller_of
from gateway.json_body import read_json_if_any
from gateway.openapi import direct_route
from gateway.openapi_workflow import CREATE, LIST, STATUS
from gateway.state import state_of
from gateway.workflow import creating, paging, paths, rendering
from gateway.workflow.lookup import find_job
from gateway.workflow.models import JobListView, JobStatusView
from gateway.workflow.paging import Cursor, Limit, Offset

_JSON = "application/json"
_MOST_NAME = 64

router = APIRouter(tags=["workflows"])
_DIRECT = direct_route(APIRoute)
direct = APIRouter(route_class=_DIRECT, tags=["workflows"])


@direct.post(paths.JOBS, response_model=JobStatusView, summary="Make a workflow job", **CREATE)
async def create_workflow(request: Request) -> Response:
    """Make a workflow job; the same Idempotency-Key again makes no second one."""
    return await creating.create(request, await read_json_if_any(request))


@direct.get(paths.STATUS, response_model=JobStatusView, summary="Read a workflow job", **STATUS)
async def read_status(request: Request) -> Response:
    """A workflow job as it stands; reading changes nothing about it."""
    body = codec.dumps(rendering.job_status(await find_job(request)))
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = request.headers.get("if-none-match", "")
    if known and etag in (version.strip().removeprefix("W/") for version in known.split(",")):
        return Response(None, 304, headers)
    return Response(body, 200, headers, _JSON)


@router.get(paths.JOBS, response_model=JobListView, summary="List workflow jobs", **LIST)
async def list_workflows(
    request: Request,
    status: Annotated[WorkflowStatus | None, Query(description="Only jobs in this status.")] = None,
    workflow: Annotated[
        str | None, Query(max_length=_MOST_NAME, description="Only jobs of this workflow.")
    ] = None,
    limit: Limit = ITEMS_PAGE,
    offset: Offset = 0,
    cursor: Cursor = None,
) -> Response:
    """Workflow jobs, the newest first. A page may be short although more follow."""
    state, caller = state_of(request), caller_of(request)
    before = paging.before_job(cursor, offset)
    wanted = Wanted(None if caller.sees_all else caller.tenant, status, workflow)
    lister = WorkflowLister(state.client, state.workflow_reader)
    page = await lister.page(wanted, limit, before, offset)
    return Response(codec.dumps(rendering.job_list(page, wanted.all)), 200, media_type=_JSON)


router.include_router(direct)
