"""`GET /v1/workers`: who works, on what, and what they have done."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from redis.exceptions import RedisError

from common.aio import wait_for
from common.contracts.workers import WorkerField
from common.observability.heartbeats import Heartbeat, read_heartbeats
from common.redis.connection import TRANSIENT_ERRORS
from gateway.auth.callers import Caller, caller_of
from gateway.http.openapi.schema import problem_responses
from gateway.http.problems import store_unavailable
from gateway.state import GatewayState, state_of

TIMEOUT_S = 2.0


async def live_workers(state: GatewayState) -> list[Heartbeat]:
    """By name; raises the Problem of a Redis that does not answer."""
    try:
        return await wait_for(TIMEOUT_S, read_heartbeats(state.client, state.settings.keys))
    except asyncio.TimeoutError:
        raise store_unavailable(f"no answer within {TIMEOUT_S:.0f} s") from None
    except (RedisError, *TRANSIENT_ERRORS) as error:
        raise store_unavailable(str(error)) from None


router = APIRouter(tags=["health"])


@dataclass(frozen=True, kw_only=True)
class WorkerView(Heartbeat):
    """What a worker said, and how long ago that was."""

    heartbeat_age_s: Annotated[float, Field(description="Seconds since its last sign of life.")]


class WorkerList(BaseModel):
    """Every worker that lives."""

    workers: list[WorkerView] = Field(description="By name; each as it said itself.")


@router.get(
    "/v1/workers", summary="Who works?", responses=problem_responses(_503="Redis does not answer.")
)
async def list_workers(request: Request) -> WorkerList:
    """What each worker last said of itself. One that fell silent is gone after a few beats.

    Of the jobs that run, a tenant's key is told its own.
    """
    caller = caller_of(request)
    found = await live_workers(state_of(request))
    return WorkerList(workers=[_view(beat, caller) for beat in found])


def _view(beat: Heartbeat, caller: Caller) -> WorkerView:
    seen = [job for job in beat.running if caller.may_see(job.job_id)]
    said = {**vars(beat), WorkerField.RUNNING: seen}
    return WorkerView(**said, heartbeat_age_s=round(beat.age_s(), 3))
