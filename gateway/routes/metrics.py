"""`GET /metrics`: a few numbers for Prometheus, from one round trip to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import PlainTextResponse, Response

from common import codec
from common.audit_report import AUDIT_FIELDS, AuditRecord
from common.connection import TRANSIENT_ERRORS
from gateway.state import GatewayState, state_of

#: How long Redis may take; a scrape must never wait for long.
TIMEOUT_S = 2.0
MEDIA_TYPE = "text/plain; version=0.0.4"

router = APIRouter(tags=["health"])


class Metric(NamedTuple):
    """One number, and what it means."""

    name: str
    kind: str
    meaning: str
    value: float


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": "sluice_up 1\n"}}}},
)
async def metrics(request: Request) -> Response:
    """Always 200: where Redis is away, `sluice_up` is 0 and what only Redis knows is left out."""
    state = state_of(request)
    try:
        known = await asyncio.wait_for(_ask_redis(state), TIMEOUT_S)
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS):
        known = []
    up = Metric("sluice_up", "gauge", "Whether Redis answers.", 1 if known else 0)
    return Response(render([up, *_of_process(state), *known]), media_type=MEDIA_TYPE)


def render(found: list[Metric]) -> str:
    """The text exposition format, version 0.0.4."""
    return "".join(
        f"# HELP {metric.name} {metric.meaning}\n# TYPE {metric.name} {metric.kind}\n"
        f"{metric.name} {metric.value:.15g}\n"
        for metric in found
    )


def _of_process(state: GatewayState) -> Iterator[Metric]:
    clients = state.hub.clients
    yield Metric("sluice_sse_clients", "gauge", "Event streams open in this process.", clients)


async def _ask_redis(state: GatewayState) -> list[Metric]:
    keys = state.settings.keys
    async with state.client.pipeline(transaction=False) as pipe:
        pipe.xlen(keys.queue)
        pipe.xinfo_groups(keys.queue)
        pipe.zcard(keys.scheduled)
        pipe.xlen(keys.dead_letters)
        pipe.get(keys.finished)
        pipe.hmget(keys.audit, list(AUDIT_FIELDS))
        length, groups, *single, audit = await pipe.execute(raise_on_error=False)
    found = list(_of_queue(length, groups, state.settings.worker_group))
    for (name, kind, meaning), reply in zip(_SINGLE, single):
        if not isinstance(reply, Exception):
            found.append(Metric(name, kind, meaning, _number(reply)))
    if not isinstance(audit, Exception):
        found += _of_audits(AuditRecord.from_values(audit))
    return found


_SINGLE = (
    ("sluice_scheduled_jobs", "gauge", "Jobs that wait for their time."),
    ("sluice_dead_letters", "gauge", "Messages and jobs put aside as hopeless."),
    ("sluice_jobs_finished_total", "counter", "Jobs that have ended."),
)


def _of_queue(length: Any, groups: Any, group: str) -> Iterator[Metric]:
    if isinstance(length, Exception):
        return  # the key holds something else: there is nothing to say of a queue
    yield Metric("sluice_queue_length", "gauge", "Entries of the queue stream.", length)
    listed = [] if isinstance(groups, Exception) else groups
    ours = [info for info in listed if codec.text(info["name"]) == group]
    pending = ours[0]["pending"] if ours else 0
    yield Metric(
        "sluice_queue_pending", "gauge", "Messages delivered and not acknowledged.", pending
    )
    # Without a group nothing was delivered yet. Redis knows the lag from 7.0 on, mostly.
    lag = ours[0].get("lag") if ours else length
    if lag is not None:
        yield Metric("sluice_queue_lag", "gauge", "Messages not delivered yet.", lag)


def _of_audits(audits: AuditRecord) -> Iterator[Metric]:
    yield Metric(
        "sluice_audit_jobs_checked_total",
        "counter",
        "Jobs looked at, over all audits.",
        audits.jobs_total,
    )
    yield Metric(
        "sluice_audit_violations_total",
        "counter",
        "Broken promises found, over all audits; one that lasts counts in each.",
        audits.violations_total,
    )
    yield Metric(
        "sluice_audit_last_violations",
        "gauge",
        "Broken promises that the last audit found.",
        audits.last_violations,
    )
    yield Metric(
        "sluice_audit_last_timestamp_seconds",
        "gauge",
        "When the last audit began; 0 where there was none.",
        audits.last_ts / 1000,
    )
    yield Metric(
        "sluice_audit_last_duration_seconds",
        "gauge",
        "How long the last audit took.",
        audits.last_ms / 1000,
    )


def _number(reply: Any) -> int:
    return codec.integer(reply) if isinstance(reply, bytes) else int(reply or 0)
