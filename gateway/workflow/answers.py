"""The answer to a request that acts: sent, remembered for its repetitions, or a refusal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from common import codec, crashpoints
from common.contracts.workflow import Fact, WorkflowError
from common.crashpoints import CrashPoint
from common.errors import SluiceError
from common.workflow.types import Outcome, WorkflowAnswer
from gateway.state import state_of
from gateway.workflow import paths
from gateway.workflow.envelope import WorkflowProblem
from gateway.workflow.error_view import ErrorItem
from gateway.workflow.keys_once import REPLAYED, Keyed

log = logging.getLogger(__name__)

_JSON: Final = "application/json"
_ACCEPTED: Final = 202
#: Answers that a repetition may well get better: they are not remembered.
_TOO_MANY, _FAULT = 429, 500


class Made(NamedTuple):
    """An answer that was found."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}


async def answer(
    request: Request, job_id: str, known: Keyed, made: Made, outcome: Outcome
) -> Response:
    """Send an answer; where the client gave a key, whoever repeats the request gets the same."""
    body = codec.dumps(made.body)
    await remember(request, known, made.status, body)
    headers = {**places(job_id, made.status), **made.headers}
    if outcome.replayed:  # the first answer was lost, and this one made of what it was made of
        headers[REPLAYED] = "true"
    return Response(body, made.status, headers, _JSON)


async def remember(request: Request, known: Keyed, status: int, body: bytes) -> None:
    """Keep an answer for repetitions. Without, they get one made of what the script found."""
    if crashpoints.ARMED:
        crashpoints.reach(CrashPoint.BEFORE_WORKFLOW_ANSWER)
    if known.key is None or status == _TOO_MANY or status >= _FAULT:
        return
    try:
        await state_of(request).workflows.keep_answer(known.once, status, body)
    except SluiceError as error:
        log.warning("an answer is not kept for its repetitions: %s", error)


async def forget(request: Request, known: Keyed) -> None:
    """Let a repetition be a first time: nothing came of the request."""
    if known.key is None:
        return
    try:
        await state_of(request).workflows.forget_answer(known.once)
    except SluiceError as error:
        log.warning("an answer is kept although nothing came of it: %s", error)


def repeated(job_id: str, status: int, body: bytes) -> Response:
    """An answer once more."""
    return Response(body, status, {**places(job_id, status), REPLAYED: "true"}, _JSON)


def places(job_id: str, status: int = _ACCEPTED) -> dict[str, str]:
    """Where to look for what is not in the answer yet."""
    if status != _ACCEPTED:
        return {}
    stream = paths.STREAM.replace("{job_id}", job_id)
    return {
        "Location": paths.place_of(job_id),
        "Link": f'<{stream}>; rel="monitor"',
        "Retry-After": "1",
    }


def check_refused(outcome: Outcome) -> None:
    """Raise where the script refused, or missed something of the job."""
    facts = outcome.facts
    if outcome.answer is WorkflowAnswer.REFUSED:
        raise refusal(_code(facts.get(Fact.CODE.value), WorkflowError.JOB_TERMINAL), facts)
    if outcome.answer is WorkflowAnswer.MISSING:
        raise refusal(_code(facts.get(Fact.WHAT.value), WorkflowError.NOT_FOUND), facts)


def refusal(
    code: WorkflowError,
    facts: Mapping[str, Any],
    item_id: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> WorkflowProblem:
    """Why a script did nothing, and what to do about it."""
    status, words = _REFUSALS.get(code, (409, "The job is not in a state for this."))
    told = {name: facts[name] for name in _TOLD if facts.get(name)}
    message = words.format_map({**dict.fromkeys(_TOLD, "?"), **told})
    if Fact.TOKEN.value in told:
        message = f"{message} Undo {told[Fact.TOKEN.value]} first."
    named = [
        ErrorItem(code=code.value, message=message, item_id=str(item))
        for item in told.get(Fact.ITEMS.value, ())
    ]
    return WorkflowProblem(
        status, code, message, item_id=item_id, extra={**told, **(extra or {})}, more=named
    )


def _code(raw: object, default: WorkflowError) -> WorkflowError:
    try:
        return WorkflowError(raw)
    except ValueError:
        return default


#: What a refusal tells of what the script found.
_TOLD: Final = (
    Fact.STEP.value,
    Fact.EXECUTION_ID.value,
    Fact.ITEMS.value,
    Fact.PENDING.value,
    Fact.TOKEN.value,
)
_REFUSALS: Final = {
    WorkflowError.NOT_FOUND: (404, "There is no such workflow job; see WORKFLOW_TTL_S."),
    WorkflowError.UNKNOWN_STEP: (422, "The workflow has no such step."),
    WorkflowError.ITEM_NOT_FOUND: (404, "The job has no such item (any more)."),
    WorkflowError.STEP_IN_PROGRESS: (
        409,
        "Step '{step}' runs already, as {execution_id}. Wait for its end, or cancel the job.",
    ),
    WorkflowError.STEP_OUT_OF_ORDER: (
        409,
        "Earlier steps are not complete, first of all '{step}'. Execute them, or leave out "
        "`strict`.",
    ),
    WorkflowError.REVIEW_REQUIRED: (
        409,
        "The review '{step}' is not complete, and nothing jumps over it. Decide on the proposals "
        "first.",
    ),
    WorkflowError.JOB_TERMINAL: (
        409,
        "The job has ended: nothing of it can be executed, decided or cancelled any more.",
    ),
    WorkflowError.NOT_REVIEWABLE: (
        409,
        "The proposals cannot be changed now: they are not there yet, are being applied, or the "
        "job has ended.",
    ),
    WorkflowError.WOULD_DISCARD: (
        409,
        "To execute the step again would drop decisions and edits. Say `discard_decisions` if "
        "that is meant.",
    ),
    WorkflowError.VERSION_CONFLICT: (
        409,
        "The item has changed meanwhile. Read it again, and decide on its new version.",
    ),
    WorkflowError.UNKNOWN_UNDO: (
        404,
        "There is nothing to undo by this token: it was used, has been dropped, or never was.",
    ),
    WorkflowError.UNDO_CONFLICT: (
        409,
        "Something has changed since, so it cannot be undone. Nothing was changed.",
    ),
}
