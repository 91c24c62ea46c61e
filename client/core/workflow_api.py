"""Requests about workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from client.core.calls import Answer, Call, call, new_key, segment
from client.core.pages import Page
from client.core.paging import reading_page
from client.core.reading import member, models, raw_object, reading
from client.core.workflow_models import (
    Decided,
    StepResult,
    WebhookLetter,
    WorkflowItem,
    WorkflowJob,
)
from client.errors import BadAnswer

_JOBS = "/api/workflow/jobs"
_LETTERS = "/api/workflow/webhooks/dlq"
_STILL_RUNS = 202


def path_of(job_id: str) -> str:
    """Where a workflow job is."""
    return f"{_JOBS}/{segment(job_id)}"


def create(
    workflow: str | None = None,
    *,
    sources: Sequence[Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    auto_advance: bool = False,
    namespace: str | None = None,
    steps: Mapping[str, Mapping[str, Any]] | None = None,
    review: Mapping[str, Any] | None = None,
    webhook: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Call[WorkflowJob]:
    """A new workflow job."""
    wishes = {
        "workflow": workflow,
        "sources": None if sources is None else list(sources),
        "metadata": metadata,
        "auto_advance": auto_advance or None,
        "namespace": namespace,
        "steps": steps,
        "review": review,
        "webhook": webhook,
    }
    return _changing("POST", _JOBS, reading(WorkflowJob, "job"), wishes, idempotency_key)


def get(job_id: str) -> Call[WorkflowJob]:
    """A workflow job as it stands."""
    return call("GET", f"{path_of(job_id)}/status", reading(WorkflowJob, "job"))


def listing(
    status: str | None, workflow: str | None, limit: int | None, cursor: str | None
) -> Call[Page[WorkflowJob]]:
    """Workflow jobs, newest first."""
    query = {"status": status, "workflow": workflow, "limit": limit, "cursor": cursor}
    read = reading_page(WorkflowJob, "jobs", "next_cursor", ("pagination",))
    return call("GET", _JOBS, read, query=query)


def execute(
    job_id: str,
    step: str,
    *,
    payload: Mapping[str, Any] | None = None,
    wait_s: float | None = None,
    strict: bool = False,
    discard_decisions: bool = False,
    idempotency_key: str | None = None,
) -> Call[StepResult]:
    """A step, and those before it that are not complete."""
    wishes = {
        "payload": payload,
        "wait_s": wait_s,
        "strict": strict or None,
        "discard_decisions": discard_decisions or None,
    }
    path = f"{path_of(job_id)}/steps/{segment(step)}/execute"
    return _changing("POST", path, _step_result, wishes, idempotency_key, wait_s or 0.0)


def _step_result(answer: Answer) -> StepResult:
    told = raw_object(answer)
    execution, result, errors = told.get("execution_id"), told.get("result"), told.get("errors")
    return StepResult(
        job_id=str(member(told, "job_id")),
        ended=answer.status != _STILL_RUNS,
        success=bool(member(told, "success")),
        execution_id=execution if isinstance(execution, str) else None,
        result=result if isinstance(result, dict) else None,
        errors=errors if isinstance(errors, list) else [],
        raw=told,
    )


def results(
    job_id: str, step: str | None, status: str | None, limit: int | None, cursor: str | None
) -> Call[Page[WorkflowItem]]:
    """What steps have found or proposed."""
    query = {"step": step, "status": status, "limit": limit, "cursor": cursor}
    return call("GET", f"{path_of(job_id)}/results", _items, query=query)


def _items(answer: Answer) -> Page[WorkflowItem]:
    result = member(answer.json(), "result")
    items = models(WorkflowItem, member(result, "items"))
    cursor = member(member(result, "pagination"), "next_cursor")
    if cursor is not None and not isinstance(cursor, str):
        raise BadAnswer("the gateway's answer has no usable cursor; check the URL")
    return Page(items, cursor)


def decisions_payload(
    decisions: Mapping[str, str] | Sequence[Mapping[str, Any]], finalize: bool
) -> dict[str, Any]:
    """Of a review: `{"p_001": "approve"}`, or the API's own list."""
    if isinstance(decisions, Mapping):
        listed: list[Any] = [
            {"id": item_id, "action": action} for item_id, action in decisions.items()
        ]
    else:
        listed = [dict(each) for each in decisions]
    return {"decisions": listed, "finalize": finalize}


def bulk(
    job_id: str,
    action: str,
    *,
    ids: Sequence[str] | None = None,
    status: str | None = None,
    min_confidence: float | None = None,
    everything: bool = False,
    note: str = "",
    versions: Mapping[str, int] | None = None,
    idempotency_key: str | None = None,
) -> Call[Decided]:
    """One decision on many items: these, those that a filter finds, or all."""
    filters = {"status": status, "min_confidence": min_confidence}
    given = {name: value for name, value in filters.items() if value is not None}
    wishes = {
        "action": action,
        "proposal_ids": None if ids is None else list(ids),
        "filter": given or None,
        "all": everything or None,
        "note": note or None,
        "versions": versions,
    }
    path = f"{path_of(job_id)}/proposals/bulk"
    return _changing("POST", path, reading(Decided), wishes, idempotency_key)


def edit(
    job_id: str,
    proposal_id: str,
    changes: Mapping[str, Any],
    idempotency_key: str | None = None,
) -> Call[WorkflowItem]:
    """Other words for a proposal, which approves it unless `auto_approve` is False."""
    path = f"{path_of(job_id)}/proposals/{segment(proposal_id)}/ontology"
    return _changing("PATCH", path, reading(WorkflowItem, "item"), changes, idempotency_key)


def undo(
    job_id: str, undo_token: str, wait_s: float | None = None, idempotency_key: str | None = None
) -> Call[dict[str, Any]]:
    """A change taken back."""
    wishes = {"undo_token": undo_token, "wait_s": wait_s}
    path = f"{path_of(job_id)}/undo"
    return _changing("POST", path, raw_object, wishes, idempotency_key, wait_s or 0.0)


def cancel(job_id: str, reason: str = "") -> Call[WorkflowJob]:
    """Its end; may be repeated."""
    path = f"{path_of(job_id)}/cancel"
    return _changing("POST", path, reading(WorkflowJob, "job"), {"reason": reason or None}, None)


def definitions() -> Call[dict[str, Any]]:
    """Which workflows can be started."""
    return call("GET", "/api/workflow/definitions", raw_object)


def webhook_letters(limit: int | None, cursor: str | None) -> Call[Page[WebhookLetter]]:
    """Deliveries that were given up."""
    read = reading_page(WebhookLetter, following="next_cursor", inside=("pagination",))
    return call("GET", _LETTERS, read, query={"limit": limit, "cursor": cursor})


def redrive_webhooks(event_ids: Sequence[str] | None) -> Call[dict[str, Any]]:
    """These, or all of them, once more."""
    body: dict[str, Any] = {"all": True} if event_ids is None else {"event_ids": list(event_ids)}
    return call("POST", f"{_LETTERS}/redrive", raw_object, body=body)


def _changing(
    method: str,
    path: str,
    read: Any,
    wishes: Mapping[str, Any],
    key: str | None,
    wait_s: float = 0.0,
) -> Call[Any]:
    """A request that changes something, under a key of its own, so that it may be repeated."""
    body = {name: value for name, value in wishes.items() if value is not None}
    asked = call(method, path, read, body=body, key=new_key() if key is None else key)
    return replace(asked, waits_s=wait_s)
