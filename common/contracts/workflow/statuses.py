"""Names of workflows: keys, fields, statuses, events, error codes, what their ids look like."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

#: `wf_YYYYMMDD_NNN`, by the UTC date and as many digits as it takes.
WORKFLOW_JOB_ID_PATTERN: Final = re.compile(r"\Awf_[0-9]{8}_[0-9]{3,}\Z")
JOB_ID_PREFIX: Final = "wf_"
EXECUTION_ID_PREFIX: Final = "ex_"
#: Before an item's id, or eight digits of an operation's own.
UNDO_PREFIX: Final = "undo_"
RESULT_CURSOR_PREFIX: Final = "res_"
EVENT_CURSOR_PREFIX: Final = "evt_"
JOB_CURSOR_PREFIX: Final = "job_"
#: The workflow that comes with Sluice.
MEMORY_FIRST: Final = "memory_first_v2"
#: The step that takes in what a job is about, in workflows that have one of this name.
SOURCES_STEP: Final = "sources"
#: Tools of our own: one execution of a step, and the undoing of what reached beyond the workflow.
STEP_TOOL: Final = "workflow.step"
UNDO_TOOL: Final = "workflow.undo"
#: Operations that can be undone.
UNDO_DEPTH: Final = 25
#: Longest time a workflow job is kept after its last change.
LONGEST_TTL_S: Final = 365 * 24 * 3600
#: How long the number of a day's last job is kept.
SEQUENCE_TTL_S: Final = 7 * 24 * 3600
#: Events kept of a workflow job, and items of one step.
EVENTS_KEPT: Final = 10_000
MOST_ITEMS: Final = 2_000
#: Bytes of JSON that one item may have, however it came to them.
MOST_ITEM_BYTES: Final = 64 * 1024
#: With so many events on their way to a webhook, those that are for the log only are not added.
MOST_UNSENT: Final = 1_000


class WorkflowStatus(str, Enum):
    """Where a workflow job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_INPUT = "waiting_input"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepStatus(str, Enum):
    """Where one of its steps stands."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    WAITING_INPUT = "waiting_input"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DraftState(str, Enum):
    """Whether there is work that was not applied yet."""

    CLEAN = "clean"
    DIRTY = "dirty"
    SAVING = "saving"
    FAILED = "failed"


class ItemStatus(str, Enum):
    """Where an item stands; those that nobody decides on are `complete`."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REJECTED = "rejected"
    APPLIED = "applied"
    FAILED = "failed"
    COMPLETE = "complete"


class StepKind(str, Enum):
    """Who does a step: a worker, or a person who decides on the items of an earlier step."""

    WORK = "work"
    REVIEW = "review"


class WorkflowEvent(str, Enum):
    """Types of a workflow job's events."""

    JOB_CREATED = "job.created"
    STEP_STARTED = "step.started"
    STEP_COMPLETED = "step.completed"
    STEP_FAILED = "step.failed"
    JOB_WAITING_INPUT = "job.waiting_input"
    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    #: From here on in the log only, unless a webhook asks for them by name.
    STEP_PROGRESS = "step.progress"
    STEP_RESET = "step.reset"
    ITEM_CHANGED = "item.changed"
    UNDO_APPLIED = "undo.applied"


#: What a webhook is told unless it says.
DEFAULT_WEBHOOK_EVENTS: Final = (
    WorkflowEvent.JOB_CREATED,
    WorkflowEvent.STEP_STARTED,
    WorkflowEvent.STEP_COMPLETED,
    WorkflowEvent.STEP_FAILED,
    WorkflowEvent.JOB_WAITING_INPUT,
    WorkflowEvent.JOB_COMPLETED,
    WorkflowEvent.JOB_FAILED,
    WorkflowEvent.JOB_CANCELLED,
)
#: After these a live stream ends. (A failed job can be resumed; a new stream then goes on.)
FINAL_EVENTS: Final = frozenset(
    {
        WorkflowEvent.JOB_COMPLETED.value,
        WorkflowEvent.JOB_FAILED.value,
        WorkflowEvent.JOB_CANCELLED.value,
    }
)


class Action(str, Enum):
    """What a person may decide about an item."""

    APPROVE = "approve"
    REJECT = "reject"
    RESET = "reset"


class Selection:
    """How the items of a bulk operation were chosen: the end of `bulk.last_operation`."""

    SELECTED: Final = "selected"
    FILTERED: Final = "filtered"
    ALL: Final = "all"


class ReviewMode(str, Enum):
    """Who reviews: a person, or nobody where confidence is high enough."""

    MANUAL = "manual"
    AUTO = "auto"


class OnTimeout(str, Enum):
    """What becomes of a review that nobody finished in time."""

    FAIL = "fail"
    APPROVE = "approve"
    REJECT = "reject"
    CANCEL = "cancel"


class DeliveryStatus(str, Enum):
    """How the last delivery to a webhook went."""

    OK = "ok"
    RETRYING = "retrying"
    FAILED = "failed"


class WorkflowError(str, Enum):
    """Codes in the `errors` of an answer and of a step."""

    INVALID = "validation_error"
    BAD_JSON = "invalid_json"
    TOO_LARGE = "payload_too_large"
    NOT_FOUND = "job_not_found"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    UNKNOWN_STEP = "unknown_step"
    ITEM_NOT_FOUND = "item_not_found"
    STEP_IN_PROGRESS = "step_in_progress"
    STEP_OUT_OF_ORDER = "step_out_of_order"
    STEP_FAILED = "step_failed"
    STEP_CANCELLED = "step_cancelled"
    STEP_LOST = "step_lost"
    SOURCE_FAILED = "source_failed"
    REVIEW_REQUIRED = "review_required"
    REVIEW_TIMEOUT = "review_timeout"
    JOB_TERMINAL = "job_terminal"
    NOT_REVIEWABLE = "not_reviewable"
    WOULD_DISCARD = "would_discard_decisions"
    VERSION_CONFLICT = "version_conflict"
    UNKNOWN_UNDO = "unknown_undo_token"
    UNDO_CONFLICT = "undo_conflict"
    UNDO_FAILED = "undo_failed"
    NAMESPACE_FULL = "namespace_full"
    TOO_MANY_NAMESPACES = "too_many_namespaces"
    INVALID_CURSOR = "invalid_cursor"
    PAGINATION_CONFLICT = "pagination_conflict"
    KEY_INVALID = "invalid_idempotency_key"
    KEY_MISMATCH = "idempotency_key_mismatch"
    KEY_REUSED = "idempotency_key_reused"
    IN_PROGRESS = "request_in_progress"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "store_unavailable"
    #: Of a webhook that was given up.
    LETTER_NOT_FOUND = "event_not_found"


class ErrorField:
    """Members of each of `errors`, in an answer and of a step."""

    CODE: Final = "code"
    MESSAGE: Final = "message"
    #: Of a step: what befell its core job, where that says more than the code.
    KIND: Final = "kind"
    #: Of a step that reads sources: which of them it is about, by name.
    SOURCE: Final = "source"


class ProposalKind(str, Enum):
    """What a proposal of the shipped workflow would do, if approved."""

    #: `from` is another name of the term `to`.
    TERM_ALIAS = "term_alias"
    #: Two spellings of one term: `from` becomes `to`.
    TERM_MERGE = "term_merge"
    #: One spelling, two cases: `from` is written as `to`.
    TERM_CASE = "term_case"
    #: `to` becomes a term; `from` is null.
    TERM_ADD = "term_add"
    #: The file `from` belongs at `to`; both below the sources' root.
    FILE_MOVE = "file_move"


class ProposalField:
    """Members of a proposal's payload."""

    KIND: Final = "kind"
    FROM: Final = "from"
    TO: Final = "to"
    CONFIDENCE: Final = "confidence"
    RATIONALE: Final = "rationale"
    #: List of `{"source", "offset"}`: an item of the step `sources`, a character of its text.
    EVIDENCE: Final = "evidence"


class WebhookHeader:
    """Headers of a delivery."""

    EVENT: Final = "X-Workflow-Event"
    TIMESTAMP: Final = "X-Workflow-Timestamp"
    VERSION: Final = "X-Workflow-Signature-Version"
    SIGNATURE: Final = "X-Workflow-Signature"


#: Values of the first and the third of them.
WEBHOOK_EVENT: Final = "job_callback"
SIGNATURE_VERSION: Final = "v1"
