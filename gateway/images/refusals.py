"""What a script found, where that is not what was asked for: as refusals, with their way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from common.admission import Admission
from common.contracts.images import ImageFact
from common.errors import QueueFull, QuotaExceeded, RateLimited
from common.images.types import ImageAnswer, ImageOutcome
from gateway import refusals
from gateway.callers import caller_of
from gateway.images.lookup import no_such_image
from gateway.problems import Problem
from gateway.state import GatewayState, state_of


def admission_of(request: Request) -> Admission:
    """What bounds the core jobs of images."""
    state = state_of(request)
    return Admission(
        state.settings.worker_group,
        state.backlog_limit,
        state.settings.job_ttl_s,
        caller_of(request).limits,
    )


async def admitted(request: Request, call: Callable[[], Awaitable[ImageOutcome]]) -> ImageOutcome:
    """The outcome of a call that makes a core job; raises what forbids it just now.

    Where the caller has too many jobs, those that have ended meanwhile are told from the others
    first.
    """
    state, limits = state_of(request), caller_of(request).limits
    outcome = await call()
    if limits is not None and outcome.answer is ImageAnswer.QUOTA:
        ended = await state.access.quotas.settle(limits.active_key)
        outcome = await call() if ended else outcome
    _check(state, outcome, 0 if limits is None else limits.max_jobs)
    return outcome


def _check(state: GatewayState, outcome: ImageOutcome, most: int) -> None:
    facts = outcome.facts
    if outcome.answer is ImageAnswer.FULL:
        raise refusals.queue_full(state, QueueFull(int(facts.get(ImageFact.BACKLOG.value, 0))))
    if outcome.answer is ImageAnswer.RATE:
        raise refusals.rate_limited(RateLimited(int(facts.get(ImageFact.WAIT_MS.value, 0))))
    if outcome.answer is ImageAnswer.QUOTA:
        exceeded = QuotaExceeded(int(facts.get(ImageFact.ACTIVE.value, 0)))
        raise refusals.quota_exceeded(state, exceeded, most)
    if outcome.answer is ImageAnswer.MISSING:
        raise no_such_image()
    if outcome.answer is ImageAnswer.LOST:
        raise upload_lost()


def already_uploaded() -> Problem:
    """Somebody was first."""
    return Problem(
        409,
        "already_uploaded",
        "This image was uploaded before, or is just now. Nothing of this upload was taken. An "
        "image that has failed can be uploaded again after POST …/retry-upload.",
    )


def upload_lost() -> Problem:
    """The upload took too long, and another one has its place."""
    return Problem(
        409,
        "upload_lost",
        "This upload is not the one that counts any more: another one has taken its place, or the "
        "image was reopened meanwhile.",
    )
