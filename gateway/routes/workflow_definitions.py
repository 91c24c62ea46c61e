"""`GET /api/workflow/definitions`: which workflows can be started, and what their steps take."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.openapi import problem_answers
from gateway.state import state_of
from gateway.workflow import paths
from gateway.workflow.definition_models import DefinitionListView, definition_list

_JSON = "application/json"

router = APIRouter(tags=["workflows"])


@router.get(
    paths.DEFINITIONS,
    response_model=DefinitionListView,
    summary="List workflows",
    responses=problem_answers(_503="Redis does not answer."),
)
async def list_definitions(request: Request) -> Response:
    """The one that comes with Sluice, and those that workers have declared."""
    known = await state_of(request).known_workflows.all()
    return Response(definition_list(known), 200, media_type=_JSON)
