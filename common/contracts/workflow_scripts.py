"""Names of the workflow operations, of what they answer, and of what can be undone."""

from __future__ import annotations

from enum import Enum


class Fact(str, Enum):
    """Members of what the scripts answer, and of the data of events. JSON."""

    JOB_ID = "job_id"
    STEP = "step"
    EXECUTION_ID = "execution_id"
    CORE_JOB_ID = "core_job_id"
    #: Of an execute: true; of what went on by itself: the step, execution and core job.
    STARTED = "started"
    #: Of a review: whether it waits for a person, has ended, and how many are undecided.
    WAITING = "waiting"
    COMPLETED = "completed"
    PENDING = "pending"
    CODE = "code"
    #: Ids of items.
    ITEMS = "items"
    BACKLOG = "backlog"
    WAIT_MS = "wait_ms"
    ACTIVE = "active"
    ATTEMPT = "attempt"
    SUMMARY = "summary"
    COUNT = "count"
    ERRORS = "errors"
    #: Items under review by their status.
    COUNTS = "counts"
    METADATA = "metadata"
    DONE = "done"
    TOTAL = "total"
    PARTS = "parts"
    LEFT = "left"
    CORE_JOBS = "core_jobs"
    REASON = "reason"
    UNDO_TOKEN = "undo_token"
    #: Events whose letters are sent again, and those that need not be.
    REDRIVEN = "redriven"
    SKIPPED = "skipped"
    #: Of decisions: ids that have the wanted status now, and `{id, code, version, status}` of those
    #: that could not get it.
    APPLIED = "applied"
    FAILED = "failed"
    ID = "id"
    VERSION = "version"
    STATUS = "status"
    #: Which of the names that a request gave is nobody's: a code of WorkflowError.
    WHAT = "what"
    ITEM_ID = "item_id"
    UNDONE = "undone"
    TOKEN = "token"
    OPERATION = "operation"
    WHO = "who"


class AuditField(str, Enum):
    """Members of the payload of a review's items: who decided what, and when."""

    WHO = "who"
    #: RFC 3339.
    AT = "at"
    #: As in `bulk.last_operation`, or `edit`.
    OPERATION = "operation"
    #: Ids of the items that it changed.
    PROPOSALS = "proposals"
    NOTE = "note"
    #: Of decisions one by one: list of `{"id", "action", "note"}`.
    DECISIONS = "decisions"
    ID = "id"
    ACTION = "action"
    UNDO_TOKEN = "undo_token"


class Decider(str, Enum):
    """Who decides where no person does."""

    AUTO = "auto"
    TIMEOUT = "timeout"


class OperationField(str, Enum):
    """Members of an operation that can be undone, JSON, and of what it keeps of each item."""

    KIND = "kind"
    MS = "ms"
    #: Item id to what it was before.
    ITEMS = "items"
    #: What it did beyond the workflow; only a worker can take that back.
    EFFECTS = "effects"
    STATUS = "status"
    VERSION = "version"
    EDITED = "edited"
    CONFIDENCE = "confidence"
    #: Only where it changed.
    PAYLOAD = "payload"
    #: What `undoable` said of the item before.
    BEFORE = "before"
    #: All that is left of one that a worker has undone: ids of its items.
    UNDONE = "undone"


class OperationKind(str, Enum):
    """What can be undone."""

    #: What a step did to items of earlier ones.
    STEP = "step"
    #: What a person, or nobody, decided about items.
    DECIDE = "decide"
    EDIT = "edit"


class EffectField(str, Enum):
    """Members of an operation's effects: what it did to a namespace of documents and terms."""

    #: The execution that does it; nobody else may while that runs.
    STEP = "step"
    EXECUTION = "execution"
    #: How the namespace's keys begin, what it is called, and the key of all such names.
    PREFIX = "prefix"
    NAMESPACE = "namespace"
    NAMESPACES = "namespaces"
    #: By field of the ontology: what it said before and says since; empty for nothing.
    TERMS = "terms"
    BEFORE = "before"
    AFTER = "after"
    #: By id: the revision that was stored.
    DOCUMENTS = "documents"
    #: Who did it, and what it found as it wanted it (`ClaimKind`): that stays while it does.
    OWNER = "owner"
    CLAIMS = "claims"


class WorkflowOperation(str, Enum):
    """One state change of a workflow job; a file of this name in `common/workflow/lua`."""

    CREATE = "create"
    EXECUTE = "execute"
    DECIDE = "decide"
    EDIT = "edit"
    UNDO = "undo"
    CANCEL = "cancel"
    ANSWER = "answer"
    PROGRESS = "progress"
    PUT = "put"
    SPLIT = "split"
    PART = "part"
    COMPLETE = "complete"
    FAIL = "fail"
    TIME_OUT = "time_out"
    #: Changes beyond the workflow, and the taking back of those that were left half done.
    APPLY = "apply"
    REVERT = "revert"
    TAKE_DELIVERY = "take_delivery"
    SETTLE_DELIVERY = "settle_delivery"
    REDRIVE_DELIVERY = "redrive_delivery"
