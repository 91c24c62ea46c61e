"""Undoing: by a script where only the workflow is concerned, by a worker where more is."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.codec import Job
from common.contracts.access import TAIL_DIGITS
from common.contracts.jobs import Status, Task
from common.contracts.workflow import (
    UNDO_TOOL,
    Fact,
    StepArgument,
    StepPayload,
    UndoOutcome,
    WorkflowError,
)
from common.options import JobOptions
from common.partitions import HOME, Partitions
from common.store import NewJob
from common.workflow.records import WorkflowJob
from common.workflow.types import Outcome, WorkflowAnswer
from gateway.callers import caller_of
from gateway.ids import new_home_job_id
from gateway.lookup import ended_within
from gateway.problems import Problem
from gateway.state import state_of
from gateway.submitting import accept
from gateway.workflow import rendering
from gateway.workflow.action_models import UndoRequest
from gateway.workflow.action_views import UndoneView, dumped
from gateway.workflow.answers import Made, answer, check_refused, forget, repeated
from gateway.workflow.asking import validated, without
from gateway.workflow.deciding import SHOWN
from gateway.workflow.envelope import WorkflowProblem
from gateway.workflow.keys_once import keyed, replay_of
from gateway.workflow.lookup import find_job
from gateway.workflow.models import UndoView
from gateway.workflow.outcomes import check_room, check_task
from gateway.workflow.waiting import claim_ms, wait_s_of

#: Undoings of one operation that ended without success are told apart by numbers; after so many,
#: by chance.
MOST_NUMBERED: Final = 20
_NAMES: Final = uuid.UUID("5f0c3f52-6f1b-4d0e-9a53-4a6b5d8c7e10")
_ACCEPTED: Final = 202
_DONE: Final = (WorkflowAnswer.OK.value, WorkflowAnswer.ALREADY.value)


async def undo(request: Request, body: Any) -> Response:
    """Take back the last change of an item, or a whole operation."""
    wanted = validated(UndoRequest, body)
    job = await find_job(request)
    check_task(caller_of(request))
    wait_s = wait_s_of(request, wanted.wait_s)
    known = keyed(request, without(body, "wait_s"), f"undo:{job.job_id}", claim_ms(wait_s))
    state = state_of(request)
    token = wanted.undo_token
    outcome = await state.workflows.undo(job.job_id, token, known.once)
    check_room(state, outcome)
    check_refused(outcome)
    core = None
    if outcome.status_code == _ACCEPTED:  # a worker may have done it meanwhile
        core = await _made_before(request, job, token)
    if outcome.replayed and outcome.status_code and not (core and core.terminal):
        return repeated(job.job_id, outcome.status_code, outcome.body)
    if not outcome.status_code:
        replay_of(outcome)
    try:
        if core is not None:
            made = await _ended(request, job, token, core)
        elif outcome.answer is WorkflowAnswer.BEYOND:
            made = await _by_worker(request, job, token, wait_s, outcome)
        else:
            made = await _undone(request, job, token, outcome.facts.get(Fact.UNDONE.value) or ())
    except Problem:
        # Nothing was undone: it may be tried again under the same key.
        await forget(request, known)
        raise
    return await answer(request, job.job_id, known, made, outcome)


async def _by_worker(
    request: Request, job: WorkflowJob, token: str, wait_s: float, outcome: Outcome
) -> Made:
    """Have a worker do it, and wait for that."""
    core = await _made_before(request, job, token) if outcome.replayed else None
    if core is None or not core.terminal:
        core_id = core.job_id if core else await _free_id(request, job, token)
        await accept(state_of(request), _core_job(request, job, token, core_id))
        core = await ended_within(request, core_id, wait_s)
    if core is not None and core.terminal:
        return await _ended(request, job, token, core)
    return await _undone(request, job, token, (), status=_ACCEPTED)


def _core_job(request: Request, job: WorkflowJob, token: str, core_id: str) -> NewJob:
    args = {StepArgument.JOB.value: job.job_id, StepArgument.UNDO_TOKEN.value: token}
    return NewJob(
        core_id,
        Task.TOOL.value,
        codec.dumps({StepPayload.TOOL.value: UNDO_TOOL, StepPayload.ARGS.value: args}),
        state_of(request).settings.job_ttl_s,
        options=JobOptions(tenant=job.tenant or None).to_json(),
        tenant=job.tenant,
        limits=caller_of(request).limits,
    )


def core_id_of(partitions: Partitions, job: WorkflowJob, token: str, number: int) -> str:
    """Of an undoing: the same for all who want it, so that it is done once."""
    name = f"{job.job_id} {job.started_ms} {token} {number}"
    names = chain((name,), (f"{name} {more}" for more in count(1)))

    def next_id() -> str:
        core_id = str(uuid.uuid5(_NAMES, next(names)))
        return core_id[:-TAIL_DIGITS] + job.tail if job.tail else core_id

    return partitions.fitting(HOME, next_id)


async def _free_id(request: Request, job: WorkflowJob, token: str) -> str:
    """Of the undoing that is under way, or has not been tried."""
    state = state_of(request)
    for number in range(MOST_NUMBERED):
        core_id = core_id_of(state.lines.partitions, job, token, number)
        core = await state.store.get(core_id)
        if core is None or not core.terminal:
            return core_id
    return new_home_job_id(state.lines.partitions, job.tail)


async def _made_before(request: Request, job: WorkflowJob, token: str) -> Job | None:
    """The undoing that was tried last."""
    state, last = state_of(request), None
    for number in range(MOST_NUMBERED):
        core = await state.store.get(core_id_of(state.lines.partitions, job, token, number))
        if core is None:
            break
        last = core
    return last


async def _ended(request: Request, job: WorkflowJob, token: str, core: Job) -> Made:
    """What came of a worker's undoing."""
    found = codec.payload_object(core.result) if core.status == Status.DONE.value else {}
    told = found.get(UndoOutcome.ANSWER.value)
    if told in _DONE:
        return await _undone(request, job, token, found.get(UndoOutcome.UNDONE.value) or ())
    facts = {
        Fact.ITEMS.value: found.get(UndoOutcome.ITEMS.value) or (),
        Fact.CODE.value: found.get(UndoOutcome.CODE.value),
        Fact.WHAT.value: found.get(UndoOutcome.CODE.value) or WorkflowError.UNKNOWN_UNDO.value,
    }
    if told in (WorkflowAnswer.REFUSED.value, WorkflowAnswer.MISSING.value):
        check_refused(Outcome(WorkflowAnswer(told), facts))
    raise WorkflowProblem(
        500,
        WorkflowError.UNDO_FAILED,
        f"No worker could undo it; see the job {core.job_id}. Nothing was changed. Try again.",
    )


async def _undone(
    request: Request, job: WorkflowJob, token: str, ids: Sequence[str], status: int = 200
) -> Made:
    reader = state_of(request).workflow_reader
    found = await reader.snapshot(job.job_id) or job
    items = await reader.named(job.job_id, [str(item_id) for item_id in ids[:SHOWN]])
    told = UndoneView(
        job_id=job.job_id,
        undo_token=token,
        undone=list(ids),
        items=[rendering.item_view(item) for item in items],
        undo=UndoView(depth=found.undo_depth, last_undo_token=found.last_undo_token or None),
        status=found.status,
        draft_state=found.draft_state,
    )
    return Made(status, dumped(told))
