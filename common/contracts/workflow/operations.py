"""Names of the workflow operations, of what they answer, and of what can be undone."""

from __future__ import annotations

from enum import Enum
from typing import Final


class WorkflowFact:
    """Members of what the scripts answer, and of the data of events. JSON."""

    JOB_ID: Final = "job_id"
    STEP: Final = "step"
    EXECUTION_ID: Final = "execution_id"
    CORE_JOB_ID: Final = "core_job_id"
    #: Of an execute: true; of what went on by itself: the step, execution and core job.
    STARTED: Final = "started"
    #: Of a review: whether it waits for a person, has ended, and how many are undecided.
    WAITING: Final = "waiting"
    COMPLETED: Final = "completed"
    PENDING: Final = "pending"
    CODE: Final = "code"
    #: Ids of items.
    ITEMS: Final = "items"
    BACKLOG: Final = "backlog"
    WAIT_MS: Final = "wait_ms"
    ACTIVE: Final = "active"
    ATTEMPT: Final = "attempt"
    SUMMARY: Final = "summary"
    COUNT: Final = "count"
    ERRORS: Final = "errors"
    #: Items under review by their status.
    COUNTS: Final = "counts"
    METADATA: Final = "metadata"
    DONE: Final = "done"
    TOTAL: Final = "total"
    PARTS: Final = "parts"
    LEFT: Final = "left"
    CORE_JOBS: Final = "core_jobs"
    REASON: Final = "reason"
    UNDO_TOKEN: Final = "undo_token"
    #: Events whose letters are sent again, and those that need not be.
    REDRIVEN: Final = "redriven"
    SKIPPED: Final = "skipped"
    #: Of decisions: ids that have the wanted status now, and `{id, code, version, status}` of those
    #: that could not get it.
    APPLIED: Final = "applied"
    FAILED: Final = "failed"
    ID: Final = "id"
    VERSION: Final = "version"
    STATUS: Final = "status"
    #: Which of the names that a request gave is nobody's: a code of WorkflowError.
    WHAT: Final = "what"
    ITEM_ID: Final = "item_id"
    UNDONE: Final = "undone"
    TOKEN: Final = "token"
    OPERATION: Final = "operation"
    WHO: Final = "who"


class ReviewItemField:
    """Members of the payload of a review's items: who decided what, and when."""

    WHO: Final = "who"
    #: RFC 3339.
    AT: Final = "at"
    #: As in `bulk.last_operation`, or `edit`.
    OPERATION: Final = "operation"
    #: Ids of the items that it changed.
    PROPOSALS: Final = "proposals"
    NOTE: Final = "note"
    #: Of decisions one by one: list of `{"id", "action", "note"}`.
    DECISIONS: Final = "decisions"
    ID: Final = "id"
    ACTION: Final = "action"
    UNDO_TOKEN: Final = "undo_token"


class Decider(str, Enum):
    """Who decides where no person does."""

    AUTO = "auto"
    TIMEOUT = "timeout"


class OperationField:
    """Members of an operation that can be undone, JSON, and of what it keeps of each item."""

    KIND: Final = "kind"
    MS: Final = "ms"
    #: Item id to what it was before.
    ITEMS: Final = "items"
    #: What it did beyond the workflow; only a worker can take that back.
    EFFECTS: Final = "effects"
    STATUS: Final = "status"
    VERSION: Final = "version"
    EDITED: Final = "edited"
    CONFIDENCE: Final = "confidence"
    #: Only where it changed.
    PAYLOAD: Final = "payload"
    #: What `undoable` said of the item before.
    BEFORE: Final = "before"
    #: All that is left of one that a worker has undone: ids of its items.
    UNDONE: Final = "undone"


class OperationKind(str, Enum):
    """What can be undone."""

    #: What a step did to items of earlier ones.
    STEP = "step"
    #: What a person, or nobody, decided about items.
    DECIDE = "decide"
    EDIT = "edit"


class EffectField:
    """Members of an operation's effects: what it did to a namespace of documents and terms."""

    #: The execution that does it; nobody else may while that runs.
    STEP: Final = "step"
    EXECUTION: Final = "execution"
    #: How the namespace's keys begin, what it is called, and the key of all such names.
    PREFIX: Final = "prefix"
    NAMESPACE: Final = "namespace"
    NAMESPACES: Final = "namespaces"
    #: By field of the ontology: what it said before and says since; empty for nothing.
    TERMS: Final = "terms"
    BEFORE: Final = "before"
    AFTER: Final = "after"
    #: By id: the revision that was stored.
    DOCUMENTS: Final = "documents"
    #: Who did it, and what it found as it wanted it (`ClaimFieldPrefix`): that stays while it does.
    OWNER: Final = "owner"
    CLAIMS: Final = "claims"


class WorkflowOperation(str, Enum):
    """One state change of a workflow job; a file of that name below
    `common/features/workflows/lua`.
    """

    CREATE = "create"
    EXECUTE = "execute"
    DECIDE = "decide"
    EDIT = "edit"
    UNDO = "undo"
    CANCEL = "cancel"
    STORE_ANSWER = "store_answer"
    PROGRESS = "progress"
    PUT = "put"
    SPLIT = "split"
    COMPLETE_PART = "complete_part"
    COMPLETE = "complete"
    FAIL = "fail"
    EXPIRE_REVIEW = "expire_review"
    #: Changes beyond the workflow, and the taking back of those that were left half done.
    APPLY = "apply"
    REVERT = "revert"
    CLAIM_DELIVERY = "claim_delivery"
    SETTLE_DELIVERY = "settle_delivery"
    REDRIVE_DELIVERY = "redrive_delivery"
