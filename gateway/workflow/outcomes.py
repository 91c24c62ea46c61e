"""What a script found, where that is not what was asked for: as refusals, with their way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from common.contracts.workflow import Fact, WorkflowError
from common.errors import QueueFull, QuotaExceeded, RateLimited
from common.workflow.types import Admission, Ids, Once, Outcome, WorkflowAnswer
from gateway import refusals
from gateway.callers import Caller, caller_of
from gateway.ids import new_execution_id, new_home_job_id
from gateway.state import GatewayState, state_of
from gateway.workflow.envelope import WorkflowProblem, no_such_job


def admission_of(request: Request) -> Admission:
    """What bounds the core jobs that a request may start."""
    state = state_of(request)
    return Admission(
        state.settings.worker_group,
        state.backlog_limit,
        state.settings.job_ttl_s,
        caller_of(request).limits,
    )


def new_ids(state: GatewayState, tail: str) -> Ids:
    """Names for a step that may be started; a tenant's core jobs end with its tail."""
    return Ids(new_execution_id(), new_home_job_id(state.lines.partitions, tail))


def check_task(caller: Caller) -> None:
    """Raise where the caller's key may not have steps run: each of them is a `tool` job."""
    refusals.check_tool_jobs(caller, "Workflows run")


async def check_pressure(request: Request, once: Once) -> None:
    """Raise while the box is short of memory or too hot, unless the request was taken before."""
    state = state_of(request)
    if state.pressure.refusing and not await state.workflow_reader.exists(once.key):
        raise state.pressure.problem()


async def admitted(request: Request, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """The outcome of a call that may start a core job; raises what forbids it just now.

    Where the caller has too many jobs, those that have ended meanwhile are told from the others
    first.
    """
    state, limits = state_of(request), caller_of(request).limits
    outcome = await call()
    if limits is not None and outcome.answer is WorkflowAnswer.QUOTA:
        ended = await state.access.quotas.settle(limits.active_key)
        outcome = await call() if ended else outcome
    check_room(state, outcome, 0 if limits is None else limits.max_jobs)
    return outcome


def check_room(state: GatewayState, outcome: Outcome, most: int = 0) -> None:
    """Raise where there is no room, no such job, or the key came with another request."""
    facts = outcome.facts
    if outcome.answer is WorkflowAnswer.FULL:
        raise refusals.queue_full(state, QueueFull(int(facts.get(Fact.BACKLOG.value, 0))))
    if outcome.answer is WorkflowAnswer.RATE:
        raise refusals.rate_limited(RateLimited(int(facts.get(Fact.WAIT_MS.value, 0))))
    if outcome.answer is WorkflowAnswer.QUOTA:
        exceeded = QuotaExceeded(int(facts.get(Fact.ACTIVE.value, 0)))
        raise refusals.quota_exceeded(state, exceeded, most)
    if outcome.answer is WorkflowAnswer.REUSED:
        raise WorkflowProblem(
            422,
            WorkflowError.KEY_REUSED,
            "This Idempotency-Key came with another request before. Use a new key.",
        )
    if outcome.answer is WorkflowAnswer.MISSING and not facts:
        raise no_such_job()
