"""Cancelling a workflow job: it ends at once, and what still runs of it is asked to."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.access import TrailAction
from common.contracts.jobs import DataField
from common.contracts.workflow import Fact
from gateway.callers import caller_of
from gateway.state import state_of
from gateway.workflow import rendering
from gateway.workflow.action_models import CancelRequest
from gateway.workflow.answers import Made, answer, check_refused, repeated
from gateway.workflow.asking import validated
from gateway.workflow.envelope import no_such_job
from gateway.workflow.keys_once import keyed, replay_of
from gateway.workflow.lookup import find_job
from gateway.workflow.outcomes import check_room, check_task
from gateway.workflow.waiting import MARGIN_MS

#: Why core jobs end, where the request does not say.
_REASON: Final = "the workflow job was cancelled"
_SUCCESS: Final = "success"


async def cancel(request: Request, body: Any) -> Response:
    """End a job for good; to cancel it again changes nothing."""
    wanted = validated(CancelRequest, body)
    job = await find_job(request)
    state, caller = state_of(request), caller_of(request)
    check_task(caller)
    if caller.key_id and caller.tenant != job.tenant:
        await state.access.write_down(request, TrailAction.JOB_CANCEL, job.job_id)
    known = keyed(request, body, f"cancel:{job.job_id}", MARGIN_MS)
    outcome = await state.workflows.cancel(job.job_id, known.once, wanted.reason)
    check_room(state, outcome)
    check_refused(outcome)
    if outcome.replayed and outcome.status_code:
        return repeated(job.job_id, outcome.status_code, outcome.body)
    replay_of(outcome)
    settings = state.settings
    data = codec.dumps({DataField.REASON.value: wanted.reason or _REASON})
    # Asked for also where it was done before: who came first may not have got so far.
    for core_job in outcome.facts.get(Fact.CORE_JOBS.value) or ():
        await state.store.cancel(str(core_job), settings.worker_group, data, settings.job_ttl_s)
    found = await state.workflow_reader.snapshot(job.job_id)
    if found is None:
        raise no_such_job()
    made = Made(200, {_SUCCESS: True, Fact.JOB_ID.value: job.job_id, **rendering.job_status(found)})
    return await answer(request, job.job_id, known, made, outcome)
