"""`GET /v1/stats`: statistics over time, and their newest values."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.stats import ONE_SECOND, TIME_COLUMN
from sluice.gateway.dashboard.activity import routes as activity
from sluice.gateway.dashboard.activity.feed import HistoryServices, history_of
from sluice.gateway.feature import Feature, FeatureContext, background_tasks
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import FieldProblem, Problem
from sluice.gateway.observability.history.models import StatsView
from sluice.gateway.observability.history.sampler import HistorySampler
from sluice.gateway.observability.history.samples import COLUMNS, SPANS, Range, columns, totals

_JSON = "application/json"

router = APIRouter(tags=["statistics"])


@router.get(
    "/v1/stats",
    response_model=StatsView,
    summary="Get statistics",
    responses=problem_responses(_422="Unknown range or column.", _503="Redis does not answer."),
)
async def get_statistics(
    request: Request,
    length: Annotated[Range, Query(alias="range", description="Length of the range up to now.")] = (
        Range.TEN_MINUTES
    ),
    only: Annotated[
        str | None,
        Query(
            alias="columns",
            max_length=1000,
            description="Comma-separated column names; all columns by default.",
            examples=["done,error"],
        ),
    ] = None,
) -> Response:
    """Returns statistics of all gateways and workers over a range, and their newest values."""
    span, history = SPANS[length], history_of(request).reader
    chosen = COLUMNS if only is None else _columns(only)
    until = int(time.time() * 1000)
    since = until - span.length_ms
    newest = await history.points(ONE_SECOND)
    points = await history.points(span.resolution, since - span.resolution.step_ms)
    # A clock that was set back leaves samples in the future: do not fill rows up to those.
    points = [each for each in points if each.ts < until + span.length_ms]
    now = newest[-1].view() if newest else dict.fromkeys((TIME_COLUMN, *COLUMNS))
    body = {
        "now": {**now, "totals": totals(history.newest)},
        "range": length.value,
        "resolution_s": span.resolution.step_ms // 1000,
        "since_ms": since,
        "until_ms": until,
        "series": columns(points, span.resolution.step_ms, chosen),
    }
    return Response(codec.dumps(body), 200, {"Cache-Control": "no-store"}, _JSON)


def _columns(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        detail = f"must be a comma-separated list of: {', '.join(COLUMNS)}"
        fault = FieldProblem(pointer="/columns", detail=detail)
        raise Problem(422, "invalid_request", "Unknown column in `columns`.", [fault])
    return names


def _build(context: FeatureContext) -> HistoryServices:
    services = HistoryServices.build(context.state)
    context.state.streams.add(services.feed, services.feed.on_hint)
    return services


@asynccontextmanager
async def _sample(context: FeatureContext, services: HistoryServices) -> AsyncIterator[None]:
    """Take samples while the gateway runs; release the lease at the end."""
    sampler = HistorySampler.over(context.state, lambda: context.loop_lag.worst_s)
    try:
        async with background_tasks(sampler.run()):
            yield
    finally:
        await sampler.release()


FEATURE: Final = Feature([router, activity.router], "history", build=_build, background=_sample)
