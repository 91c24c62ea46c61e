"""Undoes changes: by a script, or by a worker if something outside the workflow has to change."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.codec import Job
from sluice.common.contracts.access import TAIL_DIGITS
from sluice.common.contracts.jobs import Status, Task
from sluice.common.contracts.workflow.fields import (
    StepArgumentField,
    StepPayloadField,
    UndoResultField,
)
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import UNDO_TOOL, WorkflowError
from sluice.common.features.workflows.records import WorkflowJob
from sluice.common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from sluice.common.jobs.options import JobOptions
from sluice.common.jobs.store import NewJob
from sluice.common.redis.partitions import HOME_PARTITION, Partitions
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.workflows import rendering
from sluice.gateway.features.workflows.decide import MAX_SHOWN_ITEMS
from sluice.gateway.features.workflows.idempotency import (
    HttpAnswer,
    find_replay,
    forget_answer,
    identify_request,
    raise_if_refused,
    replay_answer,
    send_answer,
)
from sluice.gateway.features.workflows.lookup import (
    WorkflowProblem,
    check_admission,
    check_task,
    claim_ms,
    find_job,
    omit,
    wait_s_of,
    workflows_of,
)
from sluice.gateway.features.workflows.models.requests import UndoRequest
from sluice.gateway.features.workflows.models.responses import UndoResponse, UndoView, to_json_dict
from sluice.gateway.http.body import parse_body
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs.ids import new_home_job_id
from sluice.gateway.jobs.lookup import wait_until_ended
from sluice.gateway.jobs.submit import enqueue_job
from sluice.gateway.state import state_of

#: Failed undo jobs of one operation have numbered ids; after this many, the id is random.
MOST_NUMBERED: Final = 20
_NAMES: Final = uuid.UUID("5f0c3f52-6f1b-4d0e-9a53-4a6b5d8c7e10")
_ACCEPTED: Final = 202
_DONE: Final = (WorkflowAnswer.OK.value, WorkflowAnswer.ALREADY.value)


async def undo(request: Request, job_id: str, body: Any, prefer: list[str] | None) -> Response:
    """Undo the last change of an item, or a whole operation."""
    wanted = parse_body(UndoRequest, body)
    job = await find_job(request, job_id)
    check_task(caller_of(request))
    wait_s = wait_s_of(request, wanted.wait_s, prefer)
    known = identify_request(request, omit(body, "wait_s"), f"undo:{job.job_id}", claim_ms(wait_s))
    state = state_of(request)
    token = wanted.undo_token
    outcome = await workflows_of(request).store.undo(job.job_id, token, known.once)
    check_admission(state, outcome)
    raise_if_refused(outcome)
    core = None
    if outcome.status_code == _ACCEPTED:  # a worker may have finished meanwhile
        core = await _last_undo_job(request, job, token)
    if outcome.replayed and outcome.status_code and not (core and core.terminal):
        return replay_answer(job.job_id, outcome.status_code, outcome.body)
    if not outcome.status_code:
        find_replay(outcome)
    try:
        if core is not None:
            answer = await _worker_answer(request, job, token, core)
        elif outcome.answer is WorkflowAnswer.BEYOND:
            answer = await _by_worker(request, job, token, wait_s, outcome)
        else:
            answer = await _undo_answer(
                request, job, token, outcome.facts.get(WorkflowFact.UNDONE) or ()
            )
    except Problem:
        # Nothing was undone: the request can be repeated with the same key.
        await forget_answer(request, known)
        raise
    return await send_answer(request, job.job_id, known, answer, outcome)


async def _by_worker(
    request: Request, job: WorkflowJob, token: str, wait_s: float, outcome: WorkflowOutcome
) -> HttpAnswer:
    """Start an undo job, and wait for it."""
    core = await _last_undo_job(request, job, token) if outcome.replayed else None
    if core is None or not core.terminal:
        core_id = core.job_id if core else await _free_id(request, job, token)
        await enqueue_job(state_of(request), _core_job(request, job, token, core_id))
        core = await wait_until_ended(request, core_id, wait_s)
    if core is not None and core.terminal:
        return await _worker_answer(request, job, token, core)
    return await _undo_answer(request, job, token, (), status=_ACCEPTED)


def _core_job(request: Request, job: WorkflowJob, token: str, core_id: str) -> NewJob:
    args = {StepArgumentField.JOB: job.job_id, StepArgumentField.UNDO_TOKEN: token}
    return NewJob(
        core_id,
        Task.TOOL.value,
        codec.dumps({StepPayloadField.TOOL: UNDO_TOOL, StepPayloadField.ARGS: args}),
        state_of(request).settings.job_ttl_s,
        options=JobOptions(tenant=job.tenant or None).to_json(),
        tenant=job.tenant,
        limits=caller_of(request).limits,
    )


def undo_job_id(partitions: Partitions, job: WorkflowJob, token: str, number: int) -> str:
    """The id of an undo job; the same for all requests, so that it runs once."""
    name = f"{job.job_id} {job.started_ms} {token} {number}"
    names = chain((name,), (f"{name} {more}" for more in count(1)))

    def next_id() -> str:
        core_id = str(uuid.uuid5(_NAMES, next(names)))
        return core_id[:-TAIL_DIGITS] + job.tail if job.tail else core_id

    return partitions.draw_id(HOME_PARTITION, next_id)


async def _free_id(request: Request, job: WorkflowJob, token: str) -> str:
    """The id of the undo job that is running, or not started yet."""
    state = state_of(request)
    for number in range(MOST_NUMBERED):
        core_id = undo_job_id(state.lines.partitions, job, token, number)
        core = await state.store.get(core_id)
        if core is None or not core.terminal:
            return core_id
    return new_home_job_id(state.lines.partitions, job.tail)


async def _last_undo_job(request: Request, job: WorkflowJob, token: str) -> Job | None:
    """The last undo job of a token."""
    state, last = state_of(request), None
    for number in range(MOST_NUMBERED):
        core = await state.store.get(undo_job_id(state.lines.partitions, job, token, number))
        if core is None:
            break
        last = core
    return last


async def _worker_answer(request: Request, job: WorkflowJob, token: str, core: Job) -> HttpAnswer:
    """The response with the result of an undo job."""
    found = codec.parse_payload(core.result) if core.status == Status.DONE.value else {}
    answer = found.get(UndoResultField.ANSWER)
    if answer in _DONE:
        return await _undo_answer(request, job, token, found.get(UndoResultField.UNDONE) or ())
    facts = {
        WorkflowFact.ITEMS: found.get(UndoResultField.ITEMS) or (),
        WorkflowFact.CODE: found.get(UndoResultField.CODE),
        WorkflowFact.WHAT: found.get(UndoResultField.CODE) or WorkflowError.UNKNOWN_UNDO.value,
    }
    if answer in (WorkflowAnswer.REFUSED.value, WorkflowAnswer.MISSING.value):
        raise_if_refused(WorkflowOutcome(WorkflowAnswer(answer), facts))
    raise WorkflowProblem(
        500,
        WorkflowError.UNDO_FAILED,
        f"The undo failed; see job {core.job_id}. Nothing was changed. Try again.",
    )


async def _undo_answer(
    request: Request, job: WorkflowJob, token: str, ids: Sequence[str], status: int = 200
) -> HttpAnswer:
    reader = workflows_of(request).reader
    found = await reader.snapshot(job.job_id) or job
    items = await reader.items_by_id(
        job.job_id, [str(item_id) for item_id in ids[:MAX_SHOWN_ITEMS]]
    )
    view = UndoResponse(
        job_id=job.job_id,
        undo_token=token,
        undone=list(ids),
        items=[rendering.item_view(item) for item in items],
        undo=UndoView(depth=found.undo_depth, last_undo_token=found.last_undo_token or None),
        status=found.status,
        draft_state=found.draft_state,
    )
    return HttpAnswer(status, to_json_dict(view))
