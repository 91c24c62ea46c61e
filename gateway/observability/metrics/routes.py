"""`GET /metrics`: metrics for Prometheus, read in two or three round trips to Redis."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import PlainTextResponse, Response

from sluice.common.aio import wait_for
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.gateway.features.bullmq.queues import bullmq_of
from sluice.gateway.features.images.state import images_of
from sluice.gateway.observability.metrics.collector import MetricSources, metrics_of
from sluice.gateway.observability.snapshot.redis import RedisFacts, StallTracker, read_facts
from sluice.gateway.state import GatewayState, state_of

#: Seconds that Redis may take, so that a scrape never waits for long.
TIMEOUT_S = 1.5
_OPENMETRICS = "application/openmetrics-text"

router = APIRouter(tags=["statistics"])


@router.get(
    "/metrics",
    summary="Get Prometheus metrics",
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "The text exposition format, or OpenMetrics if `Accept` requests it.",
            "content": {
                "text/plain": {"example": "# TYPE gw_up gauge\ngw_up 1.0\n"},
                _OPENMETRICS: {"example": "# TYPE gw_up gauge\ngw_up 1.0\n# EOF\n"},
            },
        }
    },
)
async def get_metrics(request: Request) -> Response:
    """Always returns 200. While Redis is unreachable, `gw_up` is 0 and metrics that are read from
    Redis are left out."""
    state, numbers = state_of(request), metrics_of(request)
    images, bullmq = images_of(request), bullmq_of(request)
    facts, _ = await asyncio.gather(
        facts_or_none(state, numbers.stall_tracker, TIMEOUT_S),
        bullmq.refresh_depths(TIMEOUT_S),
    )
    body, media_type = await numbers.expose(
        request.headers.get("accept", ""), MetricSources(state, images, bullmq, facts)
    )
    return Response(body, headers={"Content-Type": media_type, "Cache-Control": "no-store"})


async def facts_or_none(
    state: GatewayState, stall_tracker: StallTracker, timeout_s: float
) -> RedisFacts | None:
    """Facts read from Redis; None if Redis does not answer in time."""
    try:
        return await wait_for(timeout_s, read_facts(state, stall_tracker))
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS):
        return None
