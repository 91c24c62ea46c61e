"""`GET /v1/workers`: who works, on what, and what they have done."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from redis.exceptions import RedisError

from common import heartbeats
from common.connection import TRANSIENT_ERRORS
from common.heartbeats import Heartbeat
from gateway.openapi import problem_answers
from gateway.problems import unavailable
from gateway.state import state_of

TIMEOUT_S = 2.0

router = APIRouter(tags=["health"])


class WorkerList(BaseModel):
    """Every worker that lives."""

    workers: list[Heartbeat] = Field(description="By name; each as it said itself.")


@router.get(
    "/v1/workers", summary="Who works?", responses=problem_answers(_503="Redis does not answer.")
)
async def list_workers(request: Request) -> WorkerList:
    """What each worker last said of itself. One that fell silent is gone after a few beats."""
    state = state_of(request)
    try:
        reading = heartbeats.read_all(state.client, state.settings.keys)
        found = await asyncio.wait_for(reading, TIMEOUT_S)
    except asyncio.TimeoutError:
        raise unavailable(f"no answer within {TIMEOUT_S:.0f} s") from None
    except (RedisError, *TRANSIENT_ERRORS) as error:
        raise unavailable(str(error)) from None
    return WorkerList(workers=found)
