"""Waiting for a step, without asking again and again: the hub tells when there is news."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from common.contracts.workflow import ENDING, StepStatus, WorkflowEvent, WorkflowStatus
from common.errors import CorruptKey, StoreUnavailable
from common.workflow.records import WorkflowJob
from gateway.lookup import look_until
from gateway.prefer import wait_seconds
from gateway.sources import workflow_source
from gateway.state import state_of
from gateway.workflow.action_models import MOST_WAIT_S
from gateway.workflow.lookup import may_read

#: A step's ends, and where a job goes no further by itself.
ENDED: Final = (StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELLED)
HALTED: Final = (
    WorkflowStatus.WAITING_INPUT,
    WorkflowStatus.COMPLETED,
    WorkflowStatus.FAILED,
    WorkflowStatus.CANCELLED,
)
#: After these a look is worth it.
_NEWS: Final = ENDING | {
    WorkflowEvent.STEP_COMPLETED.value,
    WorkflowEvent.STEP_FAILED.value,
    WorkflowEvent.JOB_WAITING_INPUT.value,
}
#: What an answer takes beside the waiting: no repetition is let in before.
MARGIN_MS: Final = 2_000


def is_over(job: WorkflowJob, step: str) -> bool:
    """Whether nothing more comes of a step by itself."""
    return job.steps[step].status in ENDED or job.status in HALTED


async def step_over(
    request: Request, job: WorkflowJob, step: str, wait_s: float
) -> WorkflowJob | None:
    """The job as soon as nothing more comes of a step by itself; as it stands when the time is up
    or the client has left. None where it is gone.

    That it cannot be read is no failure of a request that has done its work and only waits.
    """
    state = state_of(request)
    found: WorkflowJob | None = job

    async def look() -> bool:
        nonlocal found
        found = await state.workflow_reader.snapshot(job.job_id)
        return found is None or is_over(found, step)

    # Of the waiting, nothing is the end but what `look` finds.
    source = workflow_source(state.workflow_reader.keys, job.job_id, frozenset())
    try:
        if not await look() and wait_s > 0:
            await look_until(request, source, look, wait_s, _NEWS)
    except (StoreUnavailable, CorruptKey):
        return found or job
    return found


def wait_s_of(request: Request, asked_s: float | None) -> float:
    """How long a request waits: as its body says, or `Prefer`, or the settings."""
    if not may_read(request):
        return 0.0  # nor may it see what it would wait for
    if asked_s is not None:
        return asked_s
    lines = request.headers.getlist("prefer")
    if lines:
        return wait_seconds(", ".join(lines), MOST_WAIT_S)
    return state_of(request).settings.workflow_execute_wait_s


def claim_ms(wait_s: float) -> int:
    """How long the first request may take to be answered."""
    return round(wait_s * 1000) + MARGIN_MS
