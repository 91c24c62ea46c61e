"""Health endpoints: `/healthz` (liveness), `/readyz` (readiness) and `/v1/status` (checks)."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from sluice.common import codec
from sluice.common.aio import wait_for
from sluice.common.errors import StoreUnavailable
from sluice.common.version import VERSION
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.http.problems import ProblemView, store_unavailable
from sluice.gateway.observability.metrics.collector import metrics_of
from sluice.gateway.observability.metrics.routes import TIMEOUT_S, facts_or_none
from sluice.gateway.observability.status import status
from sluice.gateway.observability.status.checks import Level
from sluice.gateway.observability.status.status import StatusView
from sluice.gateway.state import state_of

MEDIA_TYPE = "application/health+json"
#: Seconds that Redis may take to answer the readiness probe.
READY_TIMEOUT_S = 2.0

router = APIRouter(tags=["health"])

_SCHEMA: dict[str, Any] = {
    MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{StatusView.__name__}"}}
}


@router.get(
    "/v1/status",
    summary="Get health status",
    response_model=StatusView,
    responses={
        200: {"description": "`pass`, or `warn` if a check needs attention.", "content": _SCHEMA},
        503: {"description": "`fail`: Redis does not answer.", "content": _SCHEMA},
    },
)
async def get_status(request: Request) -> Response:
    """Runs all checks; the overall status is that of the worst one."""
    state, numbers = state_of(request), metrics_of(request)
    facts = await facts_or_none(state, numbers.stall_tracker, TIMEOUT_S)
    rate, pressure = state.drain_rate.per_second, state.pressure.view
    checks = status.run_checks(state.settings, facts, rate, pressure, caller_of(request).may_see)
    found = status.status_view(checks, VERSION, numbers.started_s)
    body = codec.dumps(found.model_dump(mode="json", by_alias=True, exclude_none=True))
    code = 503 if found.status is Level.FAIL else 200
    return Response(body, code, {"Cache-Control": "no-store"}, MEDIA_TYPE)


class Health(BaseModel):
    """Body of a successful probe."""

    ok: bool = True


@router.get("/healthz", summary="Check liveness")
async def check_liveness() -> Health:
    """Returns 200 as long as the event loop runs. Does not check Redis."""
    return Health()


@router.get(
    "/readyz",
    summary="Check readiness",
    responses={503: {"description": "Redis does not accept writes.", "model": ProblemView}},
)
async def check_readiness(request: Request) -> Health:
    """Returns 200 only while Redis accepts writes."""
    try:
        await wait_for(READY_TIMEOUT_S, state_of(request).store.check_writable())
    except StoreUnavailable as error:
        raise store_unavailable(str(error)) from None
    except asyncio.TimeoutError:
        raise store_unavailable(f"no answer within {READY_TIMEOUT_S:.0f} s") from None
    return Health()
