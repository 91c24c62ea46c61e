"""`POST /api/workflow/jobs/{job_id}/steps/{step_name}/execute`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.json_body import read_json_if_any
from gateway.openapi import direct_route
from gateway.openapi_workflow_actions import EXECUTE
from gateway.workflow import executing, paths
from gateway.workflow.action_views import ExecutedView

router = APIRouter(route_class=direct_route(APIRoute), tags=["workflows"])


@router.post(paths.EXECUTE, response_model=ExecutedView, summary="Execute a step", **EXECUTE)
async def execute_step(request: Request) -> Response:
    """Execute a step, after those before it that are not complete; or decide in a review."""
    return await executing.execute(request, await read_json_if_any(request))
