"""One request of OpenAI's API: a job is made of it, followed, and given up with its client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request

from common import codec
from common.codec import Job
from common.contracts.jobs import JobField, Status, Task
from gateway.callers import Caller, caller_of
from gateway.openai.following import Following, attended, cancel_job
from gateway.openai.job_errors import failure, job_headers
from gateway.refusals import check_streams
from gateway.state import GatewayState, state_of
from gateway.submitting import submit


@dataclass(frozen=True)
class Asked:
    """A request whose job is accepted."""

    state: GatewayState
    caller: Caller
    job_id: str
    #: Of the answer, however it turns out.
    headers: dict[str, str]
    #: Who names an Idempotency-Key may come again for the same job, or has come again.
    comes_again: bool
    replayed: bool

    def follow(self) -> Following:
        """The job's events from the first on; the caller closes it."""
        return Following(self.state, self.caller, self.job_id, replayed=self.replayed)

    async def give_up(self) -> None:
        """The client has left."""
        if not self.comes_again:
            await cancel_job(self.state, self.job_id)


async def ask(request: Request, task: Task, payload: dict[str, Any]) -> Asked:
    """Make a job of a request; a Problem says why there is none."""
    state = state_of(request)
    check_streams(state)
    body = {JobField.TASK.value: task.value, JobField.PAYLOAD.value: payload}
    submitted = await submit(request, body)
    return Asked(
        state,
        caller_of(request),
        submitted.job_id,
        {**job_headers(submitted.job_id), **submitted.headers},
        comes_again="idempotency-key" in request.headers,
        replayed=submitted.replayed,
    )


class Done(NamedTuple):
    """A job that has ended well."""

    created_s: int
    result: Any


async def answered(request: Request, asked: Asked) -> Done:
    """The job, once it is done. Raises the Problem that it has ended with, or ClientLeft."""
    following = asked.follow()
    try:
        job = await attended(following.end(), request.receive, asked.give_up)
    finally:
        following.close()
    return done(job)


def done(job: Job) -> Done:
    """What a job that has ended came to; a Problem where it has not ended well."""
    if job.status != Status.DONE.value:
        raise failure(job)
    try:
        result = codec.loads(job.result)
    except ValueError:
        result = None
    return Done(job.created_ts // 1000, result)
