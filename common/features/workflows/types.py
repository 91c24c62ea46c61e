"""What goes into the workflow scripts and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from common.contracts.workflow.statuses import Action, ItemStatus
from common.features.workflows.definitions import ReviewOptions, WorkflowDefinition
from common.jobs.store import Fence


class WorkflowAnswer(str, Enum):
    """What a script found or did."""

    #: Done; the facts say what.
    OK = "ok"
    #: Done before, by this very execution or call.
    ALREADY = "already"
    #: There is no such workflow job, step, item or token.
    MISSING = "missing"
    #: The execution is not the one that counts any more: nothing written.
    LOST = "lost"
    #: Refused; the facts have a `code` of WorkflowError: nothing written.
    REFUSED = "refused"
    #: The Idempotency-Key came with another request before.
    REUSED = "reused"
    #: The queue is full; the facts have `backlog`.
    FULL = "full"
    #: The caller's key sends too fast (`wait_ms`), or has too many jobs (`active`).
    RATE = "rate"
    QUOTA = "quota"
    #: The operation reached beyond the workflow: a worker must undo it.
    BEYOND = "beyond"


class WorkflowOutcome(NamedTuple):
    """A script's answer, and what it says beside it."""

    answer: WorkflowAnswer
    facts: Mapping[str, Any]
    #: The request had been answered before: `facts` are those of the first time.
    replayed: bool = False
    #: Until when, in milliseconds of Redis' clock, the first request may still wait; 0: over.
    claimed_ms_left: int = 0
    #: The answer it got, where one was kept.
    status_code: int = 0
    body: bytes = b""


class IdempotencyClaim(NamedTuple):
    """What makes a request happen once, however often it comes.

    Every request has one: where the client gave no key, the gateway draws one, so that a script
    that is sent again after a lost reply does nothing twice.
    """

    #: Key of the answer's hash (`WorkflowKeys.answer`).
    key: str
    fingerprint: str
    ttl_s: int
    #: How long the request may wait for its answer; others are told to come back until then.
    claim_ms: int = 0


class StepIds(NamedTuple):
    """Fresh names for a step that a script may start: its execution and its core job."""

    execution: str
    core_job: str


@dataclass(frozen=True)
class Webhook:
    """Whom to tell, and which types of events."""

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
    #: Options of steps by name, JSON: they hold until an execute gives others.
    options: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecuteCommand:
    """A request to execute a step, or to advance to it."""

    job_id: str
    step: str
    #: JSON of the step's options; None keeps those it has.
    options: bytes | None = None
    #: Refuse instead of running earlier steps first.
    strict: bool = False
    discard_decisions: bool = False


class Decision(NamedTuple):
    """What a person decides about one item."""

    item_id: str
    action: Action
    #: The version it was decided on; 0: whichever it has.
    version: int = 0
    note: str = ""


@dataclass(frozen=True)
class DecideCommand:
    """Decisions about proposals: one by one, or one action for all that pass a filter."""

    job_id: str
    #: Who decides, for the record.
    who: str
    decisions: Sequence[Decision] = ()
    #: For all items, or those that pass: instead of `decisions`.
    action: Action | None = None
    status: ItemStatus | None = None
    min_confidence: float | None = None
    note: str = ""
    #: As in `bulk.last_operation`, such as `approve_selected`.
    operation: str = ""
    #: Eight hexadecimal digits: the operation's undo token ends so.
    token: str = ""
    #: Through the review step: whether undecided ones count as rejected, and it ends.
    finalize: bool = False
    #: Whether the request came through the review step, which may then end and go on.
    reviewing: bool = False
    #: Name of the review, or of the step that proposes; empty for the first that is open.
    step: str = ""


@dataclass(frozen=True)
class EditCommand:
    """A proposal's new payload, made of the one at `version`."""

    job_id: str
    item_id: str
    payload: bytes
    version: int
    confidence: float
    auto_approve: bool
    who: str
    token: str


class NewItem(NamedTuple):
    """An item that a step leaves. The script gives it its id, from the step's prefix."""

    payload: bytes
    status: str = ItemStatus.COMPLETE.value
    #: 0 to 1; what filters and automatic reviews go by.
    confidence: float = 1.0


class StepExecution(NamedTuple):
    """Which execution of which step a worker has; proven to each script."""

    job_id: str
    step: str
    execution: str
    #: The attempt of its core job; None for who repairs, and has none.
    fence: Fence | None = None


@dataclass(frozen=True)
class StepResult:
    """What a step that succeeded leaves."""

    summary: str
    items: Sequence[NewItem] = ()
    #: JSON list of `{"code", "message", …}` about what went wrong without failing the step.
    errors: bytes = b""
    #: Items of earlier steps whose status this one changes: id, status, version it must have.
    changed: Sequence[tuple[str, str, int]] = ()
    #: The operation that undoes it, where there is one.
    undo_token: str = ""


class RunningStepJob(NamedTuple):
    """A running step, as the reconciler finds it."""

    running: StepExecution
    core_job: str
