"""Names of workflows: id patterns, statuses, events, error codes, proposals, webhook headers."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

#: `wf_YYYYMMDD_NNN`: the UTC date, and a number of at least three digits.
WORKFLOW_JOB_ID_PATTERN: Final = re.compile(r"\Awf_[0-9]{8}_[0-9]{3,}\Z")
JOB_ID_PREFIX: Final = "wf_"
EXECUTION_ID_PREFIX: Final = "ex_"
#: Followed by an item id, or by eight digits of an operation.
UNDO_PREFIX: Final = "undo_"
RESULT_CURSOR_PREFIX: Final = "res_"
EVENT_CURSOR_PREFIX: Final = "evt_"
JOB_CURSOR_PREFIX: Final = "job_"
#: The built-in workflow.
MEMORY_FIRST: Final = "memory_first_v2"
#: The step that reads the sources of a job, in workflows that have one of this name.
SOURCES_STEP: Final = "sources"
#: Internal tools: one execution of a step, and the undo of effects outside the workflow.
STEP_TOOL: Final = "workflow.step"
UNDO_TOOL: Final = "workflow.undo"
#: Number of operations that can be undone.
UNDO_DEPTH: Final = 25
#: Longest time a workflow job is kept after its last change, in seconds.
LONGEST_TTL_S: Final = 365 * 24 * 3600
#: Seconds the number of a day's last job is kept.
SEQUENCE_TTL_S: Final = 7 * 24 * 3600
#: Events kept per workflow job, and items per step.
EVENTS_KEPT: Final = 10_000
MOST_ITEMS: Final = 2_000
#: Largest item, in bytes of JSON.
MOST_ITEM_BYTES: Final = 64 * 1024
#: With this many undelivered events, those that are only for the log are not added.
MOST_UNSENT: Final = 1_000


class WorkflowStatus(str, Enum):
    """Status of a workflow job."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_INPUT = "waiting_input"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepStatus(str, Enum):
    """Status of a step."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    WAITING_INPUT = "waiting_input"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DraftState(str, Enum):
    """Whether there are unapplied changes."""

    CLEAN = "clean"
    DIRTY = "dirty"
    SAVING = "saving"
    FAILED = "failed"


class ItemStatus(str, Enum):
    """Status of an item; items that need no decision are `complete`."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REJECTED = "rejected"
    APPLIED = "applied"
    FAILED = "failed"
    COMPLETE = "complete"


class StepKind(str, Enum):
    """Who performs a step: a worker, or a person who reviews the items of an earlier step."""

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
    #: The following are only in the log, unless a webhook subscribes to them by name.
    STEP_PROGRESS = "step.progress"
    STEP_RESET = "step.reset"
    ITEM_CHANGED = "item.changed"
    UNDO_APPLIED = "undo.applied"


#: Events that a webhook receives by default.
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
#: A live stream ends after these. (A failed job can be resumed; a new stream then continues.)
FINAL_EVENTS: Final = frozenset(
    {
        WorkflowEvent.JOB_COMPLETED.value,
        WorkflowEvent.JOB_FAILED.value,
        WorkflowEvent.JOB_CANCELLED.value,
    }
)


class Action(str, Enum):
    """Decision about an item."""

    APPROVE = "approve"
    REJECT = "reject"
    RESET = "reset"


class Selection:
    """How the items of a bulk operation were selected: the suffix of `bulk.last_operation`."""

    SELECTED: Final = "selected"
    FILTERED: Final = "filtered"
    ALL: Final = "all"


class ReviewMode(str, Enum):
    """Who reviews: a person, or automatically if the confidence is high enough."""

    MANUAL = "manual"
    AUTO = "auto"


class OnTimeout(str, Enum):
    """What happens to a review that is not finished in time."""

    FAIL = "fail"
    APPROVE = "approve"
    REJECT = "reject"
    CANCEL = "cancel"


class DeliveryStatus(str, Enum):
    """Status of the last webhook delivery."""

    OK = "ok"
    RETRYING = "retrying"
    FAILED = "failed"


class WorkflowError(str, Enum):
    """Codes in the `errors` of a response and of a step."""

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
    #: For a dead-lettered webhook.
    LETTER_NOT_FOUND = "event_not_found"


class ErrorField:
    """Members of each entry in `errors`, in a response and of a step."""

    CODE: Final = "code"
    MESSAGE: Final = "message"
    #: For a step: the error kind of its core job, if that is more specific than the code.
    KIND: Final = "kind"
    #: For a step that reads sources: the name of the source.
    SOURCE: Final = "source"


class ProposalKind(str, Enum):
    """What a proposal of the built-in workflow changes if approved."""

    #: `from` is another name of the term `to`.
    TERM_ALIAS = "term_alias"
    #: Two spellings of one term: `from` becomes `to`.
    TERM_MERGE = "term_merge"
    #: The same spelling in two cases: `from` is written as `to`.
    TERM_CASE = "term_case"
    #: `to` becomes a term; `from` is null.
    TERM_ADD = "term_add"
    #: The file `from` belongs at `to`; both below the sources root.
    FILE_MOVE = "file_move"


class ProposalField:
    """Members of a proposal's payload."""

    KIND: Final = "kind"
    FROM: Final = "from"
    TO: Final = "to"
    CONFIDENCE: Final = "confidence"
    RATIONALE: Final = "rationale"
    #: List of `{"source", "offset"}`: an item of the step `sources`, and an offset in its text.
    EVIDENCE: Final = "evidence"


class WebhookHeader:
    """HTTP headers of a delivery."""

    EVENT: Final = "X-Workflow-Event"
    TIMESTAMP: Final = "X-Workflow-Timestamp"
    VERSION: Final = "X-Workflow-Signature-Version"
    SIGNATURE: Final = "X-Workflow-Signature"


#: Values of X-Workflow-Event and X-Workflow-Signature-Version.
WEBHOOK_EVENT: Final = "job_callback"
SIGNATURE_VERSION: Final = "v1"
