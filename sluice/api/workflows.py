"""Models and requests of the workflow API (`/api/workflow`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sluice.api.parsing import (
    Page,
    model_reader,
    optional_cursor,
    page_reader,
    parse_models,
    raw_field,
    read_object,
    require,
)
from sluice.transport.request import (
    Request,
    Response,
    build_request,
    drop_none,
    new_idempotency_key,
    path_segment,
)

#: Statuses of an ended workflow job. A failed job can still be resumed.
ENDED = ("completed", "failed", "cancelled")
WAITING_INPUT = "waiting_input"
_JOBS = "/api/workflow/jobs"
_DEAD_LETTERS = "/api/workflow/webhooks/dlq"
#: HTTP status of an execution that has not ended yet.
_ACCEPTED = 202
T = TypeVar("T")


@dataclass(frozen=True)
class WorkflowJob:
    """A workflow job. `stepper` lists its steps; `progress` is between 0 and 1."""

    job_id: str
    workflow: str
    status: str
    progress: float
    current_step: str | None = None
    draft_state: str = ""
    started_at: str | None = None
    updated_at: str | None = None
    completed_at: str | None = None
    stepper: Sequence[Any] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = raw_field()

    @property
    def ended(self) -> bool:
        """True once the job is completed, failed or cancelled."""
        return self.status in ENDED

    @property
    def waits(self) -> bool:
        """True while the job waits for a decision."""
        return self.status == WAITING_INPUT


@dataclass(frozen=True)
class WorkflowItem:
    """An item that a step found or proposed."""

    id: str
    type: str
    status: str
    payload: Any
    version: int
    undo_token: str | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step execution. `ended` is False while the step runs or waits for input."""

    job_id: str
    ended: bool
    success: bool
    execution_id: str | None
    result: Mapping[str, Any] | None
    errors: Sequence[Any]
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class BulkResult:
    """The outcome of a bulk decision."""

    success: bool
    applied: Any
    failed: Any
    undo_token: str | None = None
    pending: int | None = None
    completed: bool = False
    errors: Sequence[Any] = ()
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class WebhookDeadLetter:
    """A webhook delivery whose attempts are exhausted."""

    event_id: str
    job_id: str
    url: str
    failed_at: str
    attempts: int
    event_type: str = ""
    attempts_detail: Sequence[Any] = ()
    redrive: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = raw_field()


def job_path(job_id: str) -> str:
    return f"{_JOBS}/{path_segment(job_id)}"


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
) -> Request[WorkflowJob]:
    options = {
        "workflow": workflow,
        "sources": None if sources is None else list(sources),
        "metadata": metadata,
        "auto_advance": auto_advance or None,
        "namespace": namespace,
        "steps": steps,
        "review": review,
        "webhook": webhook,
    }
    return _change("POST", _JOBS, model_reader(WorkflowJob, "job"), options, idempotency_key)


def get(job_id: str) -> Request[WorkflowJob]:
    path = f"{job_path(job_id)}/status"
    return build_request("GET", path, model_reader(WorkflowJob, "job"))


def list_jobs(
    status: str | None, workflow: str | None, limit: int | None, cursor: str | None
) -> Request[Page[WorkflowJob]]:
    """Lists workflow jobs, newest first."""
    query = {"status": status, "workflow": workflow, "limit": limit, "cursor": cursor}
    reader = page_reader(WorkflowJob, "jobs", "next_cursor", ("pagination",))
    return build_request("GET", _JOBS, reader, query=query)


def execute(
    job_id: str,
    step: str,
    *,
    payload: Mapping[str, Any] | None = None,
    wait_s: float | None = None,
    strict: bool = False,
    discard_decisions: bool = False,
    idempotency_key: str | None = None,
) -> Request[StepResult]:
    """Runs a step and any incomplete steps before it."""
    options = {
        "payload": payload,
        "wait_s": wait_s,
        "strict": strict or None,
        "discard_decisions": discard_decisions or None,
    }
    path = f"{job_path(job_id)}/steps/{path_segment(step)}/execute"
    return _change("POST", path, _read_step_result, options, idempotency_key, wait_s or 0.0)


def _read_step_result(response: Response) -> StepResult:
    data = read_object(response)
    execution, result, errors = data.get("execution_id"), data.get("result"), data.get("errors")
    return StepResult(
        job_id=str(require(data, "job_id")),
        ended=response.status != _ACCEPTED,
        success=bool(require(data, "success")),
        execution_id=execution if isinstance(execution, str) else None,
        result=result if isinstance(result, dict) else None,
        errors=errors if isinstance(errors, list) else [],
        raw=data,
    )


def results(
    job_id: str, step: str | None, status: str | None, limit: int | None, cursor: str | None
) -> Request[Page[WorkflowItem]]:
    """Lists the items that steps found or proposed."""
    query = {"step": step, "status": status, "limit": limit, "cursor": cursor}
    return build_request("GET", f"{job_path(job_id)}/results", _read_items, query=query)


def _read_items(response: Response) -> Page[WorkflowItem]:
    result = require(response.json(), "result")
    items = parse_models(WorkflowItem, require(result, "items"))
    cursor = require(require(result, "pagination"), "next_cursor")
    return Page(items, optional_cursor(cursor))


def decisions_payload(
    decisions: Mapping[str, str] | Sequence[Mapping[str, Any]], finalize: bool
) -> dict[str, Any]:
    """The payload of a review, from `{"p_001": "approve"}` or a list of decisions as in the API."""
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
) -> Request[BulkResult]:
    """Decides on many items: by id, by filter, or all."""
    filters = drop_none({"status": status, "min_confidence": min_confidence})
    options = {
        "action": action,
        "proposal_ids": None if ids is None else list(ids),
        "filter": filters or None,
        "all": everything or None,
        "note": note or None,
        "versions": versions,
    }
    path = f"{job_path(job_id)}/proposals/bulk"
    return _change("POST", path, model_reader(BulkResult), options, idempotency_key)


def edit(
    job_id: str,
    proposal_id: str,
    changes: Mapping[str, Any],
    idempotency_key: str | None = None,
) -> Request[WorkflowItem]:
    """Edits a proposal. This approves it, unless `auto_approve` is False."""
    path = f"{job_path(job_id)}/proposals/{path_segment(proposal_id)}/ontology"
    return _change("PATCH", path, model_reader(WorkflowItem, "item"), changes, idempotency_key)


def undo(
    job_id: str, undo_token: str, wait_s: float | None = None, idempotency_key: str | None = None
) -> Request[dict[str, Any]]:
    options = {"undo_token": undo_token, "wait_s": wait_s}
    path = f"{job_path(job_id)}/undo"
    return _change("POST", path, read_object, options, idempotency_key, wait_s or 0.0)


def cancel(job_id: str, reason: str = "") -> Request[WorkflowJob]:
    """Cancels a workflow job. Repeating the request is safe."""
    path = f"{job_path(job_id)}/cancel"
    options = {"reason": reason or None}
    return _change("POST", path, model_reader(WorkflowJob, "job"), options, None)


def definitions() -> Request[dict[str, Any]]:
    """Lists the available workflows."""
    return build_request("GET", "/api/workflow/definitions", read_object)


def webhook_dead_letters(limit: int | None, cursor: str | None) -> Request[Page[WebhookDeadLetter]]:
    """Lists webhook deliveries whose attempts are exhausted."""
    reader = page_reader(WebhookDeadLetter, cursor="next_cursor", inside=("pagination",))
    return build_request("GET", _DEAD_LETTERS, reader, query={"limit": limit, "cursor": cursor})


def redrive_webhooks(event_ids: Sequence[str] | None) -> Request[dict[str, Any]]:
    """Redelivers the given webhook events, or all dead-lettered ones."""
    body: dict[str, Any] = {"all": True} if event_ids is None else {"event_ids": list(event_ids)}
    return build_request("POST", f"{_DEAD_LETTERS}/redrive", read_object, body=body)


def _change(
    method: str,
    path: str,
    read: Callable[[Response], T],
    options: Mapping[str, Any],
    key: str | None,
    wait_s: float = 0.0,
) -> Request[T]:
    """A mutating request. It always carries an idempotency key, so retries are safe."""
    key = new_idempotency_key() if key is None else key
    request = build_request(method, path, read, body=drop_none(options), key=key)
    return replace(request, wait_s=wait_s)
