"""`GET /v1/workers`: who works, on what, and what they have done."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from common.contracts.workers import WorkerField
from common.heartbeats import Heartbeat
from gateway.callers import Caller, caller_of
from gateway.live_workers import live_workers
from gateway.openapi import problem_answers
from gateway.state import state_of

router = APIRouter(tags=["health"])


class WorkerView(Heartbeat):
    """What a worker said, and how long ago that was."""

    heartbeat_age_s: float = Field(description="Seconds since its last sign of life.")


class WorkerList(BaseModel):
    """Every worker that lives."""

    workers: list[WorkerView] = Field(description="By name; each as it said itself.")


@router.get(
    "/v1/workers", summary="Who works?", responses=problem_answers(_503="Redis does not answer.")
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
    said = {**dict(beat), WorkerField.RUNNING.value: seen}
    return WorkerView(**said, heartbeat_age_s=round(beat.age_s(), 3))
