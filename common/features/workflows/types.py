"""Arguments and results of the workflow scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from sluice.common.contracts.workflow.statuses import Action, ItemStatus
from sluice.common.features.workflows.definitions import ReviewOptions, WorkflowDefinition
from sluice.common.jobs.store import Fence


class WorkflowAnswer(str, Enum):
    """Answer of a script."""

    #: Done; see the facts.
    OK = "ok"
    #: Done before, by the same execution or call.
    ALREADY = "already"
    #: The workflow job, step, item or token does not exist.
    MISSING = "missing"
    #: The execution is not the current one any more: nothing written.
    LOST = "lost"
    #: Refused; the facts have a `code` of WorkflowError: nothing written.
    REFUSED = "refused"
    #: The Idempotency-Key was used with another request.
    REUSED = "reused"
    #: The queue is full; the facts have `backlog`.
    FULL = "full"
    #: The caller's key exceeds its rate (`wait_ms`) or its quota (`active`).
    RATE = "rate"
    QUOTA = "quota"
    #: The operation has effects outside the workflow: a worker must undo it.
    BEYOND = "beyond"


class WorkflowOutcome(NamedTuple):
    """A script's answer and its facts."""

    answer: WorkflowAnswer
    facts: Mapping[str, Any]
    #: The request was answered before: `facts` are those of the first time.
    replayed: bool = False
    #: Milliseconds that the first request may still be in progress; 0: it is not.
    claimed_ms_left: int = 0
    #: The stored response, if any.
    status_code: int = 0
    body: bytes = b""


class IdempotencyClaim(NamedTuple):
    """Makes a request happen once, even if it is repeated.

    Every request has one: if the client sends no key, the gateway generates one, so that a script
    call repeated after a lost reply has no effect.
    """

    #: Key of the stored answer (`WorkflowKeys.answer`).
    key: str
    fingerprint: str
    ttl_s: int
    #: How long the request may be in progress; repetitions are refused until then.
    claim_ms: int = 0


class StepIds(NamedTuple):
    """New ids for a step that a script may start: its execution and its core job."""

    execution: str
    core_job: str


@dataclass(frozen=True)
class Webhook:
    """The URL and event types of a webhook."""

    url: str
    events: tuple[str, ...]


@dataclass(frozen=True)
class NewWorkflow:
    """A validated request for a workflow job."""

    definition: WorkflowDefinition
    #: Day of the id, `YYYYMMDD`, by the gateway's UTC clock.
    date: str
    ttl_s: int
    idempotency_key: str = ""
    tenant: str = ""
    tail: str = ""
    metadata: bytes = b"{}"
    namespace: str = "default"
    review: ReviewOptions = field(default_factory=ReviewOptions)
    auto_advance: bool = False
    webhook: Webhook | None = None
    #: Options of steps by name (JSON): they apply until an execute replaces them.
    options: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecuteCommand:
    """A request to execute a step, or to advance to it."""

    job_id: str
    step: str
    #: The step's options (JSON); None keeps the present ones.
    options: bytes | None = None
    #: Refuse instead of running earlier steps first.
    strict: bool = False
    discard_decisions: bool = False


class Decision(NamedTuple):
    """A decision about one item."""

    item_id: str
    action: Action
    #: The version it applies to; 0: any.
    version: int = 0
    note: str = ""


@dataclass(frozen=True)
class DecideCommand:
    """Decisions about proposals: individual ones, or one action for all that pass a filter."""

    job_id: str
    #: The decider, for the record.
    who: str
    decisions: Sequence[Decision] = ()
    #: For all items, or those that pass the filter, instead of `decisions`.
    action: Action | None = None
    status: ItemStatus | None = None
    min_confidence: float | None = None
    note: str = ""
    #: As in `bulk.last_operation`, such as `approve_selected`.
    operation: str = ""
    #: Eight hexadecimal digits: the suffix of the operation's undo token.
    token: str = ""
    #: Through the review step: whether to reject undecided items and end it.
    finalize: bool = False
    #: Whether the request came through the review step, which may then end.
    reviewing: bool = False
    #: Name of the review, or of the step that proposes; empty for the first open one.
    step: str = ""


@dataclass(frozen=True)
class EditCommand:
    """A new payload of a proposal, based on `version`."""

    job_id: str
    item_id: str
    payload: bytes
    version: int
    confidence: float
    auto_approve: bool
    who: str
    token: str


class NewItem(NamedTuple):
    """A new item of a step. The script assigns its id, from the step's prefix."""

    payload: bytes
    status: str = ItemStatus.COMPLETE.value
    #: 0 to 1; used by filters and automatic reviews.
    confidence: float = 1.0


class StepExecution(NamedTuple):
    """An execution of a step; every script call presents it."""

    job_id: str
    step: str
    execution: str
    #: The attempt of its core job; None for repairs.
    fence: Fence | None = None


@dataclass(frozen=True)
class StepResult:
    """The result of a successful step."""

    summary: str
    items: Sequence[NewItem] = ()
    #: JSON list of `{"code", "message", …}`: errors that did not fail the step.
    errors: bytes = b""
    #: Items of earlier steps whose status changes: id, status, required version.
    changed: Sequence[tuple[str, str, int]] = ()
    #: The operation that can be undone, if any.
    undo_token: str = ""


class RunningStepJob(NamedTuple):
    """A running step, for the reconciler."""

    running: StepExecution
    core_job: str
