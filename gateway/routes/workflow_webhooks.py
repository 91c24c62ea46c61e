"""`/api/workflow/webhooks`: what is on its way, what was given up, and having that sent again."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.workflow.reader import ITEMS_PAGE
from gateway.json_body import read_json
from gateway.openapi import direct_route
from gateway.openapi_workflow_webhooks import DELIVERIES, LIST, REDRIVE
from gateway.state import state_of
from gateway.workflow import paging, paths, webhook_letters
from gateway.workflow.letter_models import DeliveryListView, LetterListView, RedrivenView
from gateway.workflow.paging import Cursor, Limit, Offset

_JSON = "application/json"

router = APIRouter(tags=["workflows"])
direct = APIRouter(route_class=direct_route(APIRoute), tags=["workflows"])


@router.get(
    paths.DELIVERIES,
    response_model=DeliveryListView,
    summary="List webhooks on their way",
    **DELIVERIES,
)
async def list_deliveries(request: Request, limit: Limit = ITEMS_PAGE) -> Response:
    """Webhooks with something left to tell: being tried, or waiting for the next try."""
    page = await webhook_letters.list_deliveries(state_of(request), limit)
    return Response(page, 200, media_type=_JSON)


@router.get(
    paths.DEAD_WEBHOOKS, response_model=LetterListView, summary="List dead webhooks", **LIST
)
async def list_dead_webhooks(
    request: Request, limit: Limit = ITEMS_PAGE, offset: Offset = 0, cursor: Cursor = None
) -> Response:
    """Events whose webhook could not be told, the newest first."""
    before = paging.before_letter(cursor, offset)
    page = await webhook_letters.list_letters(state_of(request), limit, before, offset)
    return Response(page, 200, media_type=_JSON)


@direct.post(
    paths.REDRIVE_WEBHOOKS, response_model=RedrivenView, summary="Redrive webhooks", **REDRIVE
)
async def redrive_webhooks(request: Request) -> Response:
    """Send events again, byte for byte; those that have arrived by now are left alone."""
    return await webhook_letters.redrive(request, await read_json(request))


router.include_router(direct)
