"""`/v1/queues`: how the queues are; pause the job queue, and let it go on."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.access import TrailAction
from common.contracts.lanes import Lane
from gateway import problems
from gateway.callers import caller_of
from gateway.json_body import read_json_if_any
from gateway.metrics import metrics_of
from gateway.metrics_redis import RedisFacts
from gateway.openapi import direct_route
from gateway.openapi_stats import LIST_QUEUES, PAUSE, RESUME
from gateway.partition_facts import PartitionFacts, joined_lanes
from gateway.problems import Problem, unavailable
from gateway.queue_models import (
    BullQueueView,
    LaneView,
    PartitionView,
    PausedQueue,
    PauseRequest,
    PauseView,
    QueueList,
    QueueView,
    WaitingView,
)
from gateway.routes.metrics import TIMEOUT_S, facts_or_none
from gateway.state import GatewayState, state_of

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["queues"])


@router.get("/v1/queues", response_model=QueueList, summary="How are the queues?", **LIST_QUEUES)
async def list_queues(request: Request) -> Response:
    """The job queue, and BullMQ's."""
    state = state_of(request)
    facts, _ = await asyncio.gather(
        facts_or_none(state, metrics_of(request).standstill, TIMEOUT_S),
        state.bullmq.measure(TIMEOUT_S),
    )
    if facts is None:
        raise unavailable(f"no answer within {TIMEOUT_S} s")
    found = QueueList(queues=[_queue(state, facts)], bullmq=_bullmq(state))
    return _answer(found, alone=len(facts.partitions) == 1)


@router.post("/v1/queues/{name}/pause", response_model=PausedQueue, summary="Pause", **PAUSE)
async def pause_queue(request: Request) -> Response:
    """Workers take nothing new; what runs goes on, what comes is accepted and waits."""
    name = _checked_name(request)
    try:
        wanted = PauseRequest.model_validate(await read_json_if_any(request))
    except ValidationError as error:
        raise problems.misfit(error) from None
    state = state_of(request)
    await state.access.write_down(request, TrailAction.QUEUE_PAUSE, name)
    pause = await state.pauses.pause(caller_of(request).who, wanted.why or "")
    return _answer(PausedQueue(name=name, paused=PauseView.of(pause)))


@router.post("/v1/queues/{name}/resume", response_model=PausedQueue, summary="Go on", **RESUME)
async def resume_queue(request: Request) -> Response:
    """Workers take jobs again; of a queue that was not paused that is true anyway."""
    name = _checked_name(request)
    state = state_of(request)
    await state.access.write_down(request, TrailAction.QUEUE_RESUME, name)
    await state.pauses.resume()
    return _answer(PausedQueue(name=name, paused=None))


def _checked_name(request: Request) -> str:
    """The queue of the path, if it is one that can be paused."""
    name: str = request.path_params["name"]
    state = state_of(request)
    if name == state.settings.queue_stream_key:
        return name
    if name in state.bullmq.names:
        raise Problem(
            409,
            "queue_not_pausable",
            "This is a queue of BullMQ, whose workers need not be ours; pause it with BullMQ.",
        )
    raise Problem(404, "queue_not_found", "There is no such queue here; see GET /v1/queues.")


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
    found = joined_lanes(facts.partitions)
    order = [lane.value for lane in Lane]
    names = sorted(found, key=lambda lane: order.index(lane) if lane in order else len(order))
    readings = [(lane, found[lane].estimated()) for lane in names]
    return [
        LaneView(lane=lane, depth=reading.waiting, pending=reading.pending)
        for lane, reading in readings
    ] or None


def _partition(state: GatewayState, facts: PartitionFacts) -> PartitionView:
    queue = facts.queue.estimated()
    return PartitionView(
        partition=facts.number,
        depth=queue.waiting,
        pending=queue.pending,
        scheduled=facts.scheduled,
        dead_letters=facts.dead_letters,
        backlog_limit=state.backlog_limit,
        trouble=facts.trouble or None,
    )


def _bullmq(state: GatewayState) -> list[BullQueueView]:
    depths = state.bullmq.depths
    return [
        BullQueueView(
            name=name, counts={place: n for (queue, place), n in depths.items() if queue == name}
        )
        for name in state.bullmq.names
    ]


def _age_ms(facts: RedisFacts, since_ms: int) -> int | None:
    age_s = facts.age_s(since_ms)
    return None if age_s is None else int(age_s * 1000)


def _answer(view: QueueList | PausedQueue, *, alone: bool = False) -> Response:
    """`alone`: a single partition is the queue itself, and not named."""
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
