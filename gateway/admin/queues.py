"""`/v1/queues`: list the queues, pause and resume the job queue."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.contracts.access import AuditAction
from sluice.common.contracts.jobs import QUEUE_STREAM
from sluice.common.contracts.queue import Lane
from sluice.gateway.admin.queue_models import (
    BullQueueView,
    LaneView,
    PartitionView,
    PauseRequest,
    PauseView,
    QueueList,
    QueuePauseView,
    QueueView,
    WaitingView,
)
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.bullmq.queues import BullQueues, bullmq_of
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import Problem, store_unavailable
from sluice.gateway.http.routing import JsonBody, JsonRoute
from sluice.gateway.observability.metrics.collector import metrics_of
from sluice.gateway.observability.metrics.routes import TIMEOUT_S, facts_or_none
from sluice.gateway.observability.snapshot.partitions import PartitionFacts, merge_lanes
from sluice.gateway.observability.snapshot.redis import RedisFacts
from sluice.gateway.state import GatewayState, state_of

_JSON = "application/json"

_REFUSALS = problem_responses(
    _404="There is no such queue.",
    _409="A BullMQ queue cannot be paused here.",
    _503="Redis does not answer or does not accept writes.",
)
PauseBody = Annotated[
    PauseRequest, Depends(JsonBody(PauseRequest, {"why": "maintenance"}, required=False))
]


async def _queue_name_param(
    request: Request,
    name: Annotated[
        str, Path(description="Name of the job queue: QUEUE_STREAM_KEY.", examples=[QUEUE_STREAM])
    ],
) -> str:
    if name == state_of(request).settings.queue_stream_key:
        return name
    if name in bullmq_of(request).names:
        raise Problem(
            409,
            "queue_not_pausable",
            "This is a BullMQ queue, which third-party workers may consume; pause it with BullMQ.",
        )
    raise Problem(404, "queue_not_found", "There is no such queue here; see GET /v1/queues.")


#: A parameter of a route: the name of a queue that can be paused.
QueueName = Annotated[str, Depends(_queue_name_param)]

router = APIRouter(route_class=JsonRoute, tags=["queues"])


@router.get(
    "/v1/queues",
    response_model=QueueList,
    summary="List queues",
    responses=problem_responses(_503="Redis does not answer."),
)
async def list_queues(request: Request) -> Response:
    """Returns the job queue and the BullMQ queues of this gateway."""
    state = state_of(request)
    facts, _ = await asyncio.gather(
        facts_or_none(state, metrics_of(request).stall_tracker, TIMEOUT_S),
        bullmq_of(request).refresh_depths(TIMEOUT_S),
    )
    if facts is None:
        raise store_unavailable(f"no answer within {TIMEOUT_S} s")
    found = QueueList(queues=[_queue(state, facts)], bullmq=_bullmq(bullmq_of(request)))
    return _answer(found, alone=len(facts.partitions) == 1)


@router.post(
    "/v1/queues/{name}/pause",
    response_model=QueuePauseView,
    summary="Pause the queue",
    responses=_REFUSALS,
)
async def pause_queue(request: Request, name: QueueName, body: PauseBody) -> Response:
    """Workers start no new jobs. Running jobs continue, and new jobs are accepted and wait."""
    state = state_of(request)
    await state.access.record(request, AuditAction.QUEUE_PAUSE, name)
    pause = await state.pauses.pause(caller_of(request).who, body.why or "")
    return _answer(QueuePauseView(name=name, paused=PauseView.of(pause)))


@router.post(
    "/v1/queues/{name}/resume",
    response_model=QueuePauseView,
    summary="Resume the queue",
    responses=_REFUSALS,
)
async def resume_queue(request: Request, name: QueueName) -> Response:
    """Workers start jobs again. Has no effect on a queue that is not paused."""
    state = state_of(request)
    await state.access.record(request, AuditAction.QUEUE_RESUME, name)
    await state.pauses.resume()
    return _answer(QueuePauseView(name=name, paused=None))


def _queue(state: GatewayState, facts: RedisFacts) -> QueueView:
    age_s = facts.oldest_age_s
    return QueueView(
        name=state.settings.queue_stream_key,
        depth=facts.queue.waiting,
        pending=facts.queue.pending,
        oldest_age_ms=None if age_s is None else int(age_s * 1000),
        scheduled=facts.scheduled,
        dead_letters=facts.dead_letters,
        drain_rate_per_s=round(state.drain_rate.per_second, 3),
        backlog_limit=state.settings.backpressure_max_backlog,
        paused=None if facts.paused is None else PauseView.of(facts.paused),
        waiting={
            task: WaitingView(number=each.number, oldest_age_ms=_age_ms(facts, each.oldest_ms))
            for task, each in facts.waiting.items()
        },
        lanes=_lanes(facts),
        partitions=[_partition(state, each) for each in facts.partitions],
    )


def _lanes(facts: RedisFacts) -> list[LaneView] | None:
    found = merge_lanes(facts.partitions)
    order = [lane.value for lane in Lane]
    names = sorted(found, key=lambda lane: order.index(lane) if lane in order else len(order))
    readings = [(lane, found[lane].with_estimate()) for lane in names]
    return [
        LaneView(lane=lane, depth=reading.waiting, pending=reading.pending)
        for lane, reading in readings
    ] or None


def _partition(state: GatewayState, facts: PartitionFacts) -> PartitionView:
    queue = facts.queue.with_estimate()
    return PartitionView(
        partition=facts.number,
        depth=queue.waiting,
        pending=queue.pending,
        scheduled=facts.scheduled,
        dead_letters=facts.dead_letters,
        backlog_limit=state.backlog_limit,
        trouble=facts.trouble or None,
    )


def _bullmq(bullmq: BullQueues) -> list[BullQueueView]:
    depths = bullmq.depths
    return [
        BullQueueView(
            name=name,
            counts={job_state: n for (queue, job_state), n in depths.items() if queue == name},
        )
        for name in bullmq.names
    ]


def _age_ms(facts: RedisFacts, since_ms: int) -> int | None:
    age_s = facts.age_s(since_ms)
    return None if age_s is None else int(age_s * 1000)


def _answer(view: QueueList | QueuePauseView, *, alone: bool = False) -> Response:
    """`alone`: there is a single partition, which is not listed."""
    left_out: Any = None
    if isinstance(view, QueueList):
        names = {
            name
            for name, absent in (("partitions", alone), ("lanes", view.queues[0].lanes is None))
            if absent
        }
        left_out = {"queues": {"__all__": names}} if names else None
    body = view.model_dump_json(exclude=left_out)
    return Response(body, 200, {"Cache-Control": "no-store"}, _JSON)
