"""Finds the workflow job of a request, and maps outcomes of scripts to problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from sluice.common.contracts.access import Scope
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import (
    FINAL_EVENTS,
    WORKFLOW_JOB_ID_PATTERN,
    StepStatus,
    WorkflowError,
    WorkflowEvent,
    WorkflowStatus,
)
from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.features.workflows.catalog import WorkflowCatalog
from sluice.common.features.workflows.definitions import StepDefinition
from sluice.common.features.workflows.reader import WorkflowReader
from sluice.common.features.workflows.records import WorkflowJob
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import (
    IdempotencyClaim,
    StepIds,
    WorkflowAnswer,
    WorkflowOutcome,
)
from sluice.common.features.workflows.webhooks.hosts import AllowedHosts
from sluice.common.observability import logs
from sluice.common.redis.batching import ScriptBatcher
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.events.frames import workflow_source
from sluice.gateway.features.workflows.models.requests import MOST_WAIT_S
from sluice.gateway.http import error_formats
from sluice.gateway.http.error_formats import ErrorItem
from sluice.gateway.http.headers import parse_prefer_wait
from sluice.gateway.http.paths import workflow_job_id_in
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs import admission, refusals
from sluice.gateway.jobs.ids import new_execution_id, new_home_job_id
from sluice.gateway.jobs.lookup import poll_until
from sluice.gateway.state import GatewayState, state_of


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
    services: WorkflowServices = request.app.state.workflows
    return services


#: Digits of the largest item number.
_MOST_DIGITS: Final = 10


def omit(body: Any, *members: str) -> Any:
    """A body without members that do not identify the request."""
    if not isinstance(body, Mapping):
        return body
    return {name: value for name, value in body.items() if name not in members}


def item_id_of(step: StepDefinition, name: str | int) -> str:
    """The id of an item, such as `p_001`, also from its number."""
    if isinstance(name, str) and not _is_number(name):
        return name
    return f"{step.prefix}_{int(name):03d}"


def _is_number(name: str) -> bool:
    return len(name) <= _MOST_DIGITS and name.isascii() and name.isdecimal()


class WorkflowProblem(Problem):
    """A problem with the additional members of the workflow envelope.

    `extra`: further members of the body, such as the current item. `more`: further errors.
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
        """The body in the format of the workflow API."""
        job_id = self._job_id or workflow_job_id_in(path)
        return error_formats.workflow_envelope(job_id, self._items, self.detail, self._extra)


def invalid_field(field: str, message: str) -> WorkflowProblem:
    """The problem of one invalid member."""
    return WorkflowProblem(422, WorkflowError.INVALID, f"{field}: {message}", field)


def job_not_found() -> WorkflowProblem:
    """The job never existed, has expired or belongs to another tenant."""
    return WorkflowProblem(
        404,
        WorkflowError.NOT_FOUND,
        "There is no such workflow job. It may have expired; see WORKFLOW_TTL_S.",
    )


#: Longest job id.
MOST_CHARS = 64


async def find_job(request: Request, job_id: str) -> WorkflowJob:
    """The job; raises 404 if it does not exist or belongs to another tenant."""
    # An invalid id is refused before Redis is asked.
    if len(job_id) > MOST_CHARS or not WORKFLOW_JOB_ID_PATTERN.match(job_id):
        raise job_not_found()
    logs.job_id.set(job_id)
    job = await workflows_of(request).reader.snapshot(job_id)
    if job is None or not may_see(caller_of(request), job):
        raise job_not_found()
    return job


def may_read(request: Request) -> bool:
    """True if the caller may read results."""
    return caller_of(request).may(Scope.JOBS_READ)


def may_see(caller: Caller, job: WorkflowJob) -> bool:
    """True if the caller may see the job."""
    return caller.sees_all or (bool(caller.tenant) and caller.tenant == job.tenant)


def new_ids(state: GatewayState, tail: str) -> StepIds:
    """Ids for a step that may be started. `tail`: of the tenant's job ids."""
    return StepIds(new_execution_id(), new_home_job_id(state.lines.partitions, tail))


def check_task(caller: Caller) -> None:
    """Raise a problem if the key is not allowed `tool` jobs, which run steps."""
    refusals.check_tool_jobs(caller, "Workflows run")


async def check_pressure(request: Request, once: IdempotencyClaim) -> None:
    """Raise a problem while jobs are refused under pressure, unless the request is a repeat."""
    state = state_of(request)
    if state.pressure.refusing and not await workflows_of(request).reader.exists(once.key):
        raise state.pressure.problem()


async def call_with_admission(
    request: Request, call: Callable[[], Awaitable[WorkflowOutcome]]
) -> WorkflowOutcome:
    """The outcome of a call that may start a job; raises the problem of a refusal."""
    outcome = await admission.call_with_admission(request, call)
    _check_request(outcome)
    return outcome


def check_admission(state: GatewayState, outcome: WorkflowOutcome) -> None:
    """Raise the problem of a limit, a missing job or a reused Idempotency-Key."""
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


#: Terminal statuses of a step, and statuses in which a job does not continue by itself.
ENDED_STEP_STATUSES: Final = (StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELLED)
HALTED_JOB_STATUSES: Final = (
    WorkflowStatus.WAITING_INPUT,
    WorkflowStatus.COMPLETED,
    WorkflowStatus.FAILED,
    WorkflowStatus.CANCELLED,
)
#: Events after which `wait_for_step` reads the job again.
_WAKING_EVENTS: Final = FINAL_EVENTS | {
    WorkflowEvent.STEP_COMPLETED.value,
    WorkflowEvent.STEP_FAILED.value,
    WorkflowEvent.JOB_WAITING_INPUT.value,
}
#: Time for a response besides the wait; until then a repeated request gets 409.
ANSWER_MARGIN_MS: Final = 2_000


def is_step_over(job: WorkflowJob, step: str) -> bool:
    """True if the step has ended, or does not continue by itself."""
    return job.steps[step].status in ENDED_STEP_STATUSES or job.status in HALTED_JOB_STATUSES


async def wait_for_step(
    request: Request, job: WorkflowJob, step: str, wait_s: float
) -> WorkflowJob | None:
    """The job once the step is over, or at the timeout or disconnect. None if it has expired.

    The request has done its work already, so an error while waiting does not fail it.
    """
    found: WorkflowJob | None = job

    async def check() -> bool:
        nonlocal found
        found = await workflows_of(request).reader.snapshot(job.job_id)
        return found is None or is_step_over(found, step)

    # No event ends the wait by itself; only `check` does.
    source = workflow_source(workflows_of(request).reader.keys, job.job_id, frozenset())
    try:
        if not await check() and wait_s > 0 and refusals.may_wait(request):
            await poll_until(request, source, check, wait_s, _WAKING_EVENTS)
    except (StoreUnavailable, CorruptKey):
        return found or job
    return found


def wait_s_of(request: Request, asked_s: float | None, prefer: list[str] | None) -> float:
    """Seconds to wait: from the body, from `Prefer`, or from the settings."""
    if not may_read(request):
        return 0.0  # the caller may not read the result
    if asked_s is not None:
        return asked_s
    if prefer:
        return parse_prefer_wait(", ".join(prefer), MOST_WAIT_S)
    return state_of(request).settings.workflow_execute_wait_s


def claim_ms(wait_s: float) -> int:
    """Milliseconds for which the first request claims its key."""
    return round(wait_s * 1000) + ANSWER_MARGIN_MS
