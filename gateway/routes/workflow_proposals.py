"""`/api/workflow/jobs/{job_id}/proposals`: deciding on many, editing one."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.json_body import read_json
from gateway.openapi import direct_route
from gateway.openapi_workflow_actions import BULK, ONTOLOGY
from gateway.workflow import deciding, editing, paths
from gateway.workflow.action_views import DecidedView, EditedView

router = APIRouter(route_class=direct_route(APIRoute), tags=["workflows"])


@router.post(paths.BULK, response_model=DecidedView, summary="Decide on many proposals", **BULK)
async def decide_on_many(request: Request) -> Response:
    """Approve, reject or reset proposals: those named, those that pass a filter, or all."""
    return await deciding.bulk(request, await read_json(request))


@router.patch(paths.ONTOLOGY, response_model=EditedView, summary="Edit a proposal", **ONTOLOGY)
async def edit_proposal(request: Request) -> Response:
    """Change what a proposal says, and approve it unless told not to."""
    return await editing.edit(request, await read_json(request))
