"""Edits a proposal: reads, changes and writes it back, if it has not changed meanwhile."""

from __future__ import annotations

import os
import posixpath
import re
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import (
    MOST_ITEM_BYTES,
    ProposalField,
    ProposalKind,
    WorkflowError,
)
from sluice.common.features.workflows.records import Item, WorkflowJob
from sluice.common.features.workflows.types import EditCommand, WorkflowAnswer, WorkflowOutcome
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.workflows import rendering
from sluice.gateway.features.workflows.decide import EMPTY_PAGE, proposing_step
from sluice.gateway.features.workflows.idempotency import (
    HttpAnswer,
    IdempotentRequest,
    find_replay,
    identify_request,
    raise_if_refused,
    refusal,
    replay_answer,
    send_answer,
)
from sluice.gateway.features.workflows.lookup import (
    ANSWER_MARGIN_MS,
    WorkflowProblem,
    call_with_admission,
    check_task,
    find_job,
    invalid_field,
    item_id_of,
    new_ids,
    workflows_of,
)
from sluice.gateway.features.workflows.models.requests import MOST_TEXT_CHARS, OntologyRequest
from sluice.gateway.features.workflows.models.responses import EditResponse, to_json_dict
from sluice.gateway.http.body import parse_body
from sluice.gateway.jobs.admission import admission_of
from sluice.gateway.state import state_of

#: Attempts of an edit that names no version, if the item changes meanwhile.
TRIES: Final = 5
_NOTE: Final = "note"
_ITEM: Final = "item"
_VERSION: Final = re.compile(r'\A(?:W/)?"?([1-9][0-9]{0,9})"?\Z')


async def edit(
    request: Request, job_id: str, proposal_id: str, body: Any, if_match: str | None
) -> Response:
    """Edit a proposal, and approve it unless `auto_approve` is false."""
    wanted = parse_body(OntologyRequest, body)
    given = {name for name in wanted.model_fields_set if getattr(wanted, name) is not None}
    if not given - {"idempotency_key", "version"}:
        raise invalid_field("to", "the request changes nothing")
    version = _version(if_match, wanted)
    job = await find_job(request, job_id)
    check_task(caller_of(request))
    item_id = item_id_of(proposing_step(job), proposal_id)
    named = {**body, "version": version}
    known = identify_request(request, named, f"ontology:{job.job_id}:{item_id}", ANSWER_MARGIN_MS)
    # Checked first: the item may not exist any more.
    reader = workflows_of(request).reader
    kept = await reader.stored_answer(known.once) if known.key is not None else None
    if kept is not None:
        return _replay_with_etag(job, *kept)
    outcome = await _write_edit(request, job, item_id, wanted, version, known)
    if outcome.replayed and outcome.status_code:
        return _replay_with_etag(job, outcome.status_code, outcome.body)
    find_replay(outcome)
    item = await _item(request, job, item_id)
    found = await reader.snapshot(job.job_id) or job
    view = EditResponse(
        job_id=job.job_id,
        step=item.step,
        item=rendering.item_view(item),
        undo_token=outcome.facts.get(WorkflowFact.UNDO_TOKEN) or None,
        ontology_edits=rendering.result_body(found, item.step, EMPTY_PAGE).ontology_edits,
    )
    answer = HttpAnswer(200, to_json_dict(view), _etag(item.version))
    return await send_answer(request, job.job_id, known, answer, outcome)


def _replay_with_etag(job: WorkflowJob, status: int, body: bytes) -> Response:
    """The stored response, with the ETag of the version in it."""
    response = replay_answer(job.job_id, status, body)
    item = codec.parse_payload(body).get(_ITEM)
    if isinstance(item, dict):
        response.headers.update(_etag(item.get(WorkflowFact.VERSION)))
    return response


def _etag(version: object) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


async def _write_edit(
    request: Request,
    job: WorkflowJob,
    item_id: str,
    wanted: OntologyRequest,
    version: int | None,
    known: IdempotentRequest,
) -> WorkflowOutcome:
    """Edit the given version, or the current one."""
    state = state_of(request)
    workflows = workflows_of(request).store
    who, token = caller_of(request).who, os.urandom(4).hex()
    ids, admission = new_ids(state, job.tail), admission_of(request)
    for attempt in range(TRIES):
        item = await _item(request, job, item_id)
        edit = EditCommand(
            job.job_id,
            item_id,
            _encoded(_edited(item, wanted)),
            version or item.version,
            item.confidence if wanted.confidence is None else wanted.confidence,
            wanted.auto_approve,
            who,
            token,
        )
        outcome = await call_with_admission(
            request, partial(workflows.edit, edit, known.once, ids, admission)
        )
        if not _is_conflict(outcome):
            break
        if version is not None or attempt == TRIES - 1:
            raise await _conflict(request, job, item_id, outcome)
    raise_if_refused(outcome)
    return outcome


def _is_conflict(outcome: WorkflowOutcome) -> bool:
    code = outcome.facts.get(WorkflowFact.CODE)
    return outcome.answer is WorkflowAnswer.REFUSED and code == WorkflowError.VERSION_CONFLICT.value


async def _conflict(
    request: Request, job: WorkflowJob, item_id: str, outcome: WorkflowOutcome
) -> WorkflowProblem:
    """The problem of a version conflict, with the current item."""
    item = await _item(request, job, item_id)
    extra = {_ITEM: rendering.item_view(item).model_dump()}
    return refusal(WorkflowError.VERSION_CONFLICT, outcome.facts, item_id, extra)


async def _item(request: Request, job: WorkflowJob, item_id: str) -> Item:
    item = await workflows_of(request).reader.item(job.job_id, item_id)
    if item is None:
        raise refusal(WorkflowError.ITEM_NOT_FOUND, {}, item_id)
    return item


def _edited(item: Item, wanted: OntologyRequest) -> dict[str, Any]:
    """The edited proposal."""
    payload = codec.parse_payload(item.payload)
    for member, value in _changes(wanted).items():
        former = payload.get(member)
        if former is not None and isinstance(former, list) != isinstance(value, list):
            shape = "a list of texts" if isinstance(former, list) else "one text"
            raise invalid_field(member, f"it is {shape} in this proposal")
        payload[member] = value
    if wanted.proposed_folder is not None or wanted.proposed_filename is not None:
        payload[ProposalField.TO] = _moved(payload, wanted)
    return payload


def _encoded(payload: dict[str, Any]) -> bytes:
    """The proposal as JSON; it has the same size limit as one from a step."""
    encoded = codec.dumps(payload)
    if len(encoded) > MOST_ITEM_BYTES:
        raise WorkflowProblem(
            422,
            WorkflowError.INVALID,
            f"The proposal would have {len(encoded)} bytes of JSON, {MOST_ITEM_BYTES} at most.",
        )
    return encoded


def _changes(wanted: OntologyRequest) -> dict[str, Any]:
    given = {
        ProposalField.TO: wanted.to,
        ProposalField.FROM: wanted.from_,
        ProposalField.CONFIDENCE: wanted.confidence,
        ProposalField.RATIONALE: wanted.rationale,
        _NOTE: wanted.note,
    }
    return {member: value for member, value in given.items() if value is not None}


def _moved(payload: dict[str, Any], wanted: OntologyRequest) -> str:
    """The new path of a file, from its folder, its name or both."""
    member = "proposed_folder" if wanted.proposed_folder is not None else "proposed_filename"
    if payload.get(ProposalField.KIND) != ProposalKind.FILE_MOVE.value:
        raise invalid_field(member, "only for a proposal of kind file_move; use `to`")
    if wanted.to is not None:
        raise invalid_field(member, "cannot be combined with `to`")
    folder, name = posixpath.split(str(payload.get(ProposalField.TO, "")))
    if wanted.proposed_folder is not None:
        folder = wanted.proposed_folder.strip("/")
        if any(part in ("..", ".") for part in folder.split("/")) or "\0" in folder:
            raise invalid_field("proposed_folder", "it must not have a part . or .., or a NUL")
    if wanted.proposed_filename is not None:
        name = wanted.proposed_filename
        if "/" in name or "\0" in name or name in (".", ".."):
            raise invalid_field("proposed_filename", "it must be a file name without a folder")
    whole = posixpath.join(folder, name) if folder else name
    if len(whole) > MOST_TEXT_CHARS:
        raise invalid_field(member, f"folder and name have more than {MOST_TEXT_CHARS} characters")
    return whole


def _version(raw: str | None, wanted: OntologyRequest) -> int | None:
    """The version to edit, from the body or If-Match."""
    if raw is None or raw.strip() == "*":
        return wanted.version
    match = _VERSION.match(raw.strip())
    if match is None:
        raise invalid_field("if-match", 'it must be the version of the item, such as "3"')
    version = int(match[1])
    if wanted.version not in (None, version):
        raise invalid_field("version", "the header If-Match names another version")
    return version
