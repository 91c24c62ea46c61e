"""`POST /api/workflow/jobs/{job_id}/cancel`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.json_body import read_json_if_any
from gateway.openapi import direct_route
from gateway.openapi_workflow_actions import CANCEL
from gateway.workflow import cancelling, paths
from gateway.workflow.action_views import CancelledView

router = APIRouter(route_class=direct_route(APIRoute), tags=["workflows"])


@router.post(paths.CANCEL, response_model=CancelledView, summary="Cancel it", **CANCEL)
async def cancel_workflow(request: Request) -> Response:
    """End a workflow job for good; what runs of it is asked to end."""
    return await cancelling.cancel(request, await read_json_if_any(request))
