"""`POST /api/workflow/jobs/{job_id}/undo`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.json_body import read_json
from gateway.openapi import direct_route
from gateway.openapi_workflow_actions import UNDO
from gateway.workflow import paths, undoing
from gateway.workflow.action_views import UndoneView

router = APIRouter(route_class=direct_route(APIRoute), tags=["workflows"])


@router.post(paths.UNDO, response_model=UndoneView, summary="Undo", **UNDO)
async def undo(request: Request) -> Response:
    """Take back the last change of an item, or a whole operation; each token works once."""
    return await undoing.undo(request, await read_json(request))
