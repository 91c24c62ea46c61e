"""`GET /v1/status`: how everything is, part by part."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from common import codec
from common.version import VERSION
from gateway.auth.callers import caller_of
from gateway.observability.metrics.collector import metrics_of
from gateway.observability.metrics.routes import TIMEOUT_S, facts_or_none
from gateway.observability.status import status
from gateway.observability.status.checks import Level
from gateway.observability.status.status import StatusView
from gateway.state import state_of

MEDIA_TYPE = "application/health+json"

router = APIRouter(tags=["health"])

_SCHEMA: dict[str, Any] = {
    MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{StatusView.__name__}"}}
}


@router.get(
    "/v1/status",
    summary="How is everything?",
    response_model=StatusView,
    responses={
        200: {"description": "It serves; `warn` where somebody should look.", "content": _SCHEMA},
        503: {"description": "`fail`: Redis does not answer.", "content": _SCHEMA},
    },
)
async def read_status(request: Request) -> Response:
    """Every part that this gateway can see, and the worst of them as the whole."""
    state, numbers = state_of(request), metrics_of(request)
    facts = await facts_or_none(state, numbers.stall_tracker, TIMEOUT_S)
    rate, pressure = state.drain_rate.per_second, state.pressure.view
    checks = status.run_checks(state.settings, facts, rate, pressure, caller_of(request).may_see)
    found = status.status_view(checks, VERSION, numbers.started_s)
    body = codec.dumps(found.model_dump(mode="json", by_alias=True, exclude_none=True))
    code = 503 if found.status is Level.FAIL else 200
    return Response(body, code, {"Cache-Control": "no-store"}, MEDIA_TYPE)
