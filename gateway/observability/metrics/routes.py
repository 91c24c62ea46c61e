"""`GET /metrics`: numbers for Prometheus, from two round trips to Redis."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import PlainTextResponse, Response

from common.aio import wait_for
from common.redis.connection import TRANSIENT_ERRORS
from gateway.features.bullmq.queues import bullmq_of
from gateway.features.images.state import images_of
from gateway.observability.metrics.collector import MetricSources, metrics_of
from gateway.observability.snapshot.redis import RedisFacts, StallTracker, read_facts
from gateway.state import GatewayState, state_of

#: How long Redis may take; a scrape must never wait for long.
TIMEOUT_S = 1.5
_OPENMETRICS = "application/openmetrics-text"

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "The text exposition format, or OpenMetrics where `Accept` asks for it.",
            "content": {
                "text/plain": {"example": "# TYPE gw_up gauge\ngw_up 1.0\n"},
                _OPENMETRICS: {"example": "# TYPE gw_up gauge\ngw_up 1.0\n# EOF\n"},
            },
        }
    },
)
async def metrics(request: Request) -> Response:
    """Always 200: where Redis is away, `gw_up` is 0 and what only Redis knows is left out."""
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
    state: GatewayState, standstill: StallTracker, timeout_s: float
) -> RedisFacts | None:
    """What Redis knows; None where it does not answer in time."""
    try:
        return await wait_for(timeout_s, read_facts(state, standstill))
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS):
        return None
