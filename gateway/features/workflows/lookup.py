"""Finds the job of a request, and maps outcomes of the workflows' scripts to problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from common.contracts.access import Scope
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.statuses import (
    FINAL_EVENTS,
    WORKFLOW_JOB_ID_PATTERN,
    StepStatus,
    WorkflowError,
    WorkflowEvent,
    WorkflowStatus,
)
from common.errors import CorruptKey, StoreUnavailable
from common.features.workflows.catalog import WorkflowCatalog
from common.features.workflows.definitions import StepDefinition
from common.features.workflows.reader import WorkflowReader
from common.features.workflows.records import WorkflowJob
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import (
    IdempotencyClaim,
    StepIds,
    WorkflowAnswer,
    WorkflowOutcome,
)
from common.features.workflows.webhooks.hosts import AllowedHosts
from common.observability import logs
from common.redis.batching import ScriptBatcher
from gateway.auth.callers import Caller, caller_of
from gateway.events.frames import workflow_source
from gateway.features.workflows.models.requests import MOST_WAIT_S
from gateway.http import error_formats
from gateway.http.error_formats import ErrorItem
from gateway.http.headers import parse_prefer_wait
from gateway.http.paths import workflow_job_id_in
from gateway.http.problems import Problem
from gateway.jobs import admission, refusals
from gateway.jobs.ids import new_execution_id, new_home_job_id
from gateway.jobs.lookup import poll_until
from gateway.state import GatewayState, state_of


@dataclass(frozen=True)
class WorkflowServices:
    """What the routes of workflows need beyond the gateway's core state."""

    store: WorkflowStore
    reader: WorkflowReader
    catalog: WorkflowCatalog
    #: Private hosts that webhooks may be sent to.
    webhook_hosts: AllowedHosts

    @classmethod
    def build(cls, state: GatewayState, batcher: ScriptBatcher) -> WorkflowServices:
        """`batcher` runs the workflow script on the home partition."""
        client, keys = state.client, WorkflowKeys(state.store.keys.tag)
        return cls(
            store=WorkflowStore(client, state.store.keys, batcher, keys),
            reader=WorkflowReader(client, keys),
            catalog=WorkflowCatalog(client, keys),
            webhook_hosts=AllowedHosts.parse(state.settings.workflow_webhook_allowed_hosts),
        )


def workflows_of(request: Request) -> WorkflowServices:
    """The workflow services behind a request."""
    services: WorkflowServices = request.app.state.workflows
    return services


#: No item has a longer number.
_MOST_DIGITS: Final = 10


def omit(body: Any, *members: str) -> Any:
    """A body without what does not make it another request."""
    if not isinstance(body, Mapping):
        return body
    return {name: value for name, value in body.items() if name not in members}


def item_id_of(step: StepDefinition, name: str | int) -> str:
    """`p_001`, also where just its number was given."""
    if isinstance(name, str) and not _is_number(name):
        return name
    return f"{step.prefix}_{int(name):03d}"


def _is_number(name: str) -> bool:
    return len(name) <= _MOST_DIGITS and name.isascii() and name.isdecimal()


class WorkflowProblem(Problem):
    """A refusal with all that the envelope can say of it.

    `extra`: members of the answer beside those that every refusal has, such as the item as it
    stands. `more`: what else is wrong with the request.
    """

    def __init__(
        self,
        status: int,
        code: WorkflowError | str,
        message: str,
        field: str | None = None,
        item_id: str | None = None,
        job_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        more: Sequence[ErrorItem] = (),
    ) -> None:
        name = code.value if isinstance(code, WorkflowError) else code
        super().__init__(status, name, message, headers=dict(headers or {}))
        self._job_id = job_id
        self._extra = extra
        self._items = (
            ErrorItem(code=name, message=message, field=field, item_id=item_id),
            *more,
        )

    def envelope(self, path: str) -> bytes:
        """As the workflow API words it."""
        job_id = self._job_id or workflow_job_id_in(path)
        return error_formats.workflow_envelope(job_id, self._items, self.detail, self._extra)


def invalid_field(field: str, message: str) -> WorkflowProblem:
    """One member of a request is not what it should be."""
    return WorkflowProblem(422, WorkflowError.INVALID, f"{field}: {message}", field)


def job_not_found() -> WorkflowProblem:
    """It never was, or is no more, or is another's."""
    return WorkflowProblem(
        404,
        WorkflowError.NOT_FOUND,
        "There is no such workflow job. It may have expired; see WORKFLOW_TTL_S.",
    )


#: No id of ours is longer.
MOST_CHARS = 64


async def find_job(request: Request, job_id: str) -> WorkflowJob:
    """The job, or a 404: also where it is another tenant's."""
    # An invalid id is refused before Redis is asked.
    if len(job_id) > MOST_CHARS or not WORKFLOW_JOB_ID_PATTERN.match(job_id):
        raise job_not_found()
    logs.job_id.set(job_id)
    job = await workflows_of(request).reader.snapshot(job_id)
    if job is None or not may_see(caller_of(request), job):
        raise job_not_found()
    return job


def may_read(request: Request) -> bool:
    """Whether whoever asks may see what comes of it."""
    return caller_of(request).may(Scope.JOBS_READ)


def may_see(caller: Caller, job: WorkflowJob) -> bool:
    """Whether there is such a job, as far as this caller is concerned."""
    return caller.sees_all or (bool(caller.tenant) and caller.tenant == job.tenant)


def new_ids(state: GatewayState, tail: str) -> StepIds:
    """Names for a step that may be started; a tenant's core jobs end with its tail."""
    return StepIds(new_execution_id(), new_home_job_id(state.lines.partitions, tail))


def check_task(caller: Caller) -> None:
    """Raise where the caller's key may not have steps run: each of them is a `tool` job."""
    refusals.check_tool_jobs(caller, "Workflows run")


async def check_pressure(request: Request, once: IdempotencyClaim) -> None:
    """Raise while the host is short of memory or too hot, unless the request was taken before."""
    state = state_of(request)
    if state.pressure.refusing and not await workflows_of(request).reader.exists(once.key):
        raise state.pressure.problem()


async def call_with_admission(
    request: Request, call: Callable[[], Awaitable[WorkflowOutcome]]
) -> WorkflowOutcome:
    """The outcome of a call that may start a core job; raises what forbids it just now."""
    outcome = await admission.call_with_admission(request, call)
    _check_request(outcome)
    return outcome


def check_admission(state: GatewayState, outcome: WorkflowOutcome) -> None:
    """Raise where there is no room, no such job, or the key came with another request."""
    admission.check_admission(state, outcome)
    _check_request(outcome)


def _check_request(outcome: WorkflowOutcome) -> None:
    if outcome.answer is WorkflowAnswer.REUSED:
        raise WorkflowProblem(
            422,
            WorkflowError.KEY_REUSED,
            "This Idempotency-Key was used with a different request. Use a new key.",
        )
    if outcome.answer is WorkflowAnswer.MISSING and not outcome.facts:
        raise job_not_found()


#: A step's ends, and where a job goes no further by itself.
ENDED_STEP_STATUSES: Final = (StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELLED)
HALTED_JOB_STATUSES: Final = (
    WorkflowStatus.WAITING_INPUT,
    WorkflowStatus.COMPLETED,
    WorkflowStatus.FAILED,
    WorkflowStatus.CANCELLED,
)
#: After these a look is worth it.
_WAKING_EVENTS: Final = FINAL_EVENTS | {
    WorkflowEvent.STEP_COMPLETED.value,
    WorkflowEvent.STEP_FAILED.value,
    WorkflowEvent.JOB_WAITING_INPUT.value,
}
#: What an answer takes beside the waiting: no repetition is let in before.
ANSWER_MARGIN_MS: Final = 2_000


def is_step_over(job: WorkflowJob, step: str) -> bool:
    """Whether nothing more comes of a step by itself."""
    return job.steps[step].status in ENDED_STEP_STATUSES or job.status in HALTED_JOB_STATUSES


async def wait_for_step(
    request: Request, job: WorkflowJob, step: str, wait_s: float
) -> WorkflowJob | None:
    """The job as soon as nothing more comes of a step by itself; as it stands when the time is up
    or the client has left. None where it is gone.

    That it cannot be read is no failure of a request that has done its work and only waits.
    """
    found: WorkflowJob | None = job

    async def look() -> bool:
        nonlocal found
        found = await workflows_of(request).reader.snapshot(job.job_id)
        return found is None or is_step_over(found, step)

    # Of the waiting, nothing is the end but what `look` finds.
    source = workflow_source(workflows_of(request).reader.keys, job.job_id, frozenset())
    try:
        if not await look() and wait_s > 0:
            await poll_until(request, source, look, wait_s, _WAKING_EVENTS)
    except (StoreUnavailable, CorruptKey):
        return found or job
    return found


def wait_s_of(request: Request, asked_s: float | None, prefer: list[str] | None) -> float:
    """How long a request waits: as its body says, or `Prefer`, or the settings."""
    if not may_read(request):
        return 0.0  # nor may it see what it would wait for
    if asked_s is not None:
        return asked_s
    if prefer:
        return parse_prefer_wait(", ".join(prefer), MOST_WAIT_S)
    return state_of(request).settings.workflow_execute_wait_s


def claim_ms(wait_s: float) -> int:
    """How long the first request may take to be answered."""
    return round(wait_s * 1000) + ANSWER_MARGIN_MS
