"""Limits on the jobs that features start with their own scripts, and the problems of a refusal.

The scripts of images and workflows check the backlog and the caller's rate and quota with
`common/jobs/lua/lib/admission.lua`; their answers and facts have the same names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from sluice.common.contracts.queue import AdmissionAnswer, AdmissionFact
from sluice.common.errors import QueueFull, QuotaExceeded, RateLimited
from sluice.common.jobs.limits import AdmissionLimits
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.jobs import refusals
from sluice.gateway.state import GatewayState, state_of


class ScriptOutcome(Protocol):
    """The answer of a script that may start a job."""

    @property
    def answer(self) -> str:
        """The script's answer; one of AdmissionAnswer where the job was refused."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Values that the script returned, by name."""


_Outcome = TypeVar("_Outcome", bound=ScriptOutcome)


def admission_of(request: Request) -> AdmissionLimits:
    """The limits on the jobs that a request may start."""
    state = state_of(request)
    return AdmissionLimits(
        state.settings.worker_group,
        state.backlog_limit,
        state.settings.job_ttl_s,
        caller_of(request).limits,
    )


async def call_with_admission(
    request: Request, call: Callable[[], Awaitable[_Outcome]]
) -> _Outcome:
    """The outcome of a script that may start a job; raises the problem of a refusal.

    If the caller's quota is used up, jobs that have ended meanwhile are removed from it and the
    script is called again.
    """
    state, limits = state_of(request), caller_of(request).limits
    outcome = await call()
    if limits is not None and outcome.answer == AdmissionAnswer.QUOTA:
        ended = await state.access.quotas.prune_quota(limits.active_key)
        outcome = await call() if ended else outcome
    check_admission(state, outcome, 0 if limits is None else limits.max_jobs)
    return outcome


def check_admission(state: GatewayState, outcome: ScriptOutcome, max_jobs: int = 0) -> None:
    """Raise the problem of a full queue, a rate or a quota. `max_jobs`: the caller's quota."""
    answer, facts = outcome.answer, outcome.facts
    if answer == AdmissionAnswer.FULL:
        raise refusals.queue_full(state, QueueFull(int(facts.get(AdmissionFact.BACKLOG, 0))))
    if answer == AdmissionAnswer.RATE:
        raise refusals.rate_limited(RateLimited(int(facts.get(AdmissionFact.WAIT_MS, 0))))
    if answer == AdmissionAnswer.QUOTA:
        exceeded = QuotaExceeded(int(facts.get(AdmissionFact.ACTIVE, 0)))
        raise refusals.quota_exceeded(state, exceeded, max_jobs)
