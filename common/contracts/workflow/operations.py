"""Names of the workflow operations, their answers, and undo data."""

from __future__ import annotations

from enum import Enum
from typing import Final


class WorkflowFact:
    """Members of the scripts' answers and of event data (JSON)."""

    JOB_ID: Final = "job_id"
    STEP: Final = "step"
    EXECUTION_ID: Final = "execution_id"
    CORE_JOB_ID: Final = "core_job_id"
    #: For an execute: true; for an automatic advance: the step, execution and core job.
    STARTED: Final = "started"
    #: For a review: whether it waits for a decision, has ended, and how many items are undecided.
    WAITING: Final = "waiting"
    COMPLETED: Final = "completed"
    PENDING: Final = "pending"
    CODE: Final = "code"
    #: Item ids.
    ITEMS: Final = "items"
    BACKLOG: Final = "backlog"
    WAIT_MS: Final = "wait_ms"
    ACTIVE: Final = "active"
    ATTEMPT: Final = "attempt"
    SUMMARY: Final = "summary"
    COUNT: Final = "count"
    ERRORS: Final = "errors"
    #: Numbers of items under review by status.
    COUNTS: Final = "counts"
    METADATA: Final = "metadata"
    DONE: Final = "done"
    TOTAL: Final = "total"
    PARTS: Final = "parts"
    LEFT: Final = "left"
    CORE_JOBS: Final = "core_jobs"
    REASON: Final = "reason"
    UNDO_TOKEN: Final = "undo_token"
    #: Events whose dead letters are redriven, and those that were skipped.
    REDRIVEN: Final = "redriven"
    SKIPPED: Final = "skipped"
    #: For decisions: ids that have the requested status now, and `{id, code, version, status}` of
    #: those that could not get it.
    APPLIED: Final = "applied"
    FAILED: Final = "failed"
    ID: Final = "id"
    VERSION: Final = "version"
    STATUS: Final = "status"
    #: Which name in the request is unknown: a code of WorkflowError.
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
    #: Ids of the changed items.
    PROPOSALS: Final = "proposals"
    NOTE: Final = "note"
    #: For individual decisions: list of `{"id", "action", "note"}`.
    DECISIONS: Final = "decisions"
    ID: Final = "id"
    ACTION: Final = "action"
    UNDO_TOKEN: Final = "undo_token"


class Decider(str, Enum):
    """Name of the decider if it is not a person."""

    AUTO = "auto"
    TIMEOUT = "timeout"


class OperationField:
    """Members of an operation that can be undone (JSON), and of the saved state of each item."""

    KIND: Final = "kind"
    MS: Final = "ms"
    #: Item id to its previous state.
    ITEMS: Final = "items"
    #: Effects outside the workflow, which only a worker can undo.
    EFFECTS: Final = "effects"
    STATUS: Final = "status"
    VERSION: Final = "version"
    EDITED: Final = "edited"
    CONFIDENCE: Final = "confidence"
    #: Only if it changed.
    PAYLOAD: Final = "payload"
    #: The previous entry of the item in `undoable`.
    BEFORE: Final = "before"
    #: The only member left after a worker has undone the operation: ids of its items.
    UNDONE: Final = "undone"


class OperationKind(str, Enum):
    """Kinds of operations that can be undone."""

    #: Changes of a step to items of earlier ones.
    STEP = "step"
    #: Decisions about items, by a person or automatically.
    DECIDE = "decide"
    EDIT = "edit"


class EffectField:
    """Members of an operation's effects: its changes to a namespace of documents and terms."""

    #: The execution that made the changes; while it runs, no other may.
    STEP: Final = "step"
    EXECUTION: Final = "execution"
    #: Prefix of the namespace's keys, its name, and the key with all namespace names.
    PREFIX: Final = "prefix"
    NAMESPACE: Final = "namespace"
    NAMESPACES: Final = "namespaces"
    #: Ontology field to its value before and after the change; empty for no value.
    TERMS: Final = "terms"
    BEFORE: Final = "before"
    AFTER: Final = "after"
    #: Document id to the stored revision.
    DOCUMENTS: Final = "documents"
    #: The workflow job, and what it found already present (`ClaimFieldPrefix`), which is kept
    #: while the job relies on it.
    OWNER: Final = "owner"
    CLAIMS: Final = "claims"


class WorkflowOperation(str, Enum):
    """Atomic state changes of a workflow job, one Lua file each below
    `common/features/workflows/lua`."""

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
    #: Effects outside the workflow, and the reversal of those that were left half done.
    APPLY = "apply"
    REVERT = "revert"
    CLAIM_DELIVERY = "claim_delivery"
    SETTLE_DELIVERY = "settle_delivery"
    REDRIVE_DELIVERY = "redrive_delivery"
