"""Fields of what workflows keep: the record, its steps, declarations, answers, the outbox."""

from __future__ import annotations

from enum import Enum


class JobHash(str, Enum):
    """Fields of `workflow:job:{id}`. Times are milliseconds."""

    WORKFLOW = "workflow"
    #: The declaration as it was when the job was made, JSON (`common.workflow.definition`).
    DEFINITION = "definition"
    STATUS = "status"
    CURRENT_STEP = "current_step"
    DRAFT_STATE = "draft_state"
    STARTED_MS = "started_ms"
    UPDATED_MS = "updated_ms"
    COMPLETED_MS = "completed_ms"
    TTL_S = "ttl_s"
    IDEMPOTENCY_KEY = "idempotency_key"
    #: Whose it is, and how the ids of its core jobs end; empty for nobody's.
    TENANT = "tenant"
    TAIL = "tail"
    #: The client's own, JSON.
    METADATA = "metadata"
    #: The rag namespace that it builds.
    NAMESPACE = "namespace"
    #: JSON: `common.workflow.definition.ReviewOptions`.
    REVIEW = "review"
    #: `1` where each completion starts the next step.
    AUTO_ADVANCE = "auto_advance"
    #: Name of the step up to which an execute wanted it to run; empty for none.
    TARGET = "target"
    WEBHOOK_URL = "webhook_url"
    #: Event types that are delivered, separated by spaces.
    WEBHOOK_EVENTS = "webhook_events"
    WEBHOOK_STATUS = "webhook_status"
    WEBHOOK_MS = "webhook_ms"
    #: Numbers given out so far.
    EVENT_SEQ = "event_seq"
    ITEM_SEQ = "item_seq"
    #: Items under review by status, and changes that were not applied: kept by the scripts.
    PROPOSED = "proposed"
    APPROVED = "approved"
    REJECTED = "rejected"
    APPLIED = "applied"
    PENDING_CHANGES = "pending_changes"
    #: As in `bulk.last_operation`.
    LAST_OPERATION = "last_operation"


class StepField(str, Enum):
    """Fields of a step in `workflow:job:{id}:steps`, each as `{step}.{field}`."""

    STATUS = "status"
    UPDATED_MS = "updated_ms"
    STARTED_MS = "started_ms"
    #: How often it was executed, the execution that counts, and its core job.
    ATTEMPT = "attempt"
    EXECUTION = "execution"
    CORE_JOB = "core_job"
    #: The client's options, JSON.
    OPTIONS = "options"
    SUMMARY = "summary"
    COUNT = "count"
    #: JSON list of `{"code", "message", …}`; empty for none.
    ERRORS = "errors"
    DONE = "done"
    TOTAL = "total"
    #: How many parts it was split into; empty for one that was not.
    PARTS = "parts"
    #: Core jobs of its parts from 1 on, separated by spaces.
    PART_JOBS = "part_jobs"
    #: Token of the operation that undoes it, where it can be.
    UNDO_TOKEN = "undo_token"
    #: Token of what the execution did beyond the workflow, from its first such change on.
    EFFECTS = "effects"
    #: Highest version of items that it had before it was executed again: new ones begin beyond.
    VERSION_FLOOR = "version_floor"


class StepPayload(str, Enum):
    """Members of the payload of a step's core job: the tool, and its arguments."""

    TOOL = "tool"
    ARGS = "args"


class MetadataField(str, Enum):
    """Members of a job's metadata that are ours, whatever the client's are."""

    SOURCE_COUNT = "source_count"
    PROPOSAL_COUNT = "proposal_count"
    COMPLETED_STEPS = "completed_steps"
    LAST_RESULT_BY_STEP = "last_result_by_step"


class StepArgument(str, Enum):
    """Members of the `args` of a step's core job."""

    JOB = "workflow_job_id"
    STEP = "step"
    EXECUTION = "execution_id"
    #: Which part of a step that was split, from 0 on; absent for the whole.
    PART = "part"
    #: Of an undoing.
    UNDO_TOKEN = "undo_token"


class StepOutcome(str, Enum):
    """Members of the result of a step's core job, beside those of its arguments."""

    ITEMS = "items"
    SUMMARY = "summary"
    #: There, and true, where another execution counts, or none: nothing was written.
    SUPERSEDED = "superseded"
    #: There of a part of a split step that has ended while others go on: how many do.
    LEFT = "left"


class UndoOutcome(str, Enum):
    """Members of the result of an undoing's core job."""

    ANSWER = "answer"
    UNDONE = "undone"
    ITEMS = "items"
    CODE = "code"


class DefinitionField(str, Enum):
    """Members of a declaration, JSON."""

    NAME = "name"
    DESCRIPTION = "description"
    STEPS = "steps"
    PREFIX = "prefix"
    ITEM_TYPE = "item_type"
    WEIGHT = "weight"
    KIND = "kind"
    REVIEWS = "reviews"
    DRAFT = "draft"
    SETTLES = "settles"
    PROPOSES = "proposes"
    TIMEOUT_S = "timeout_s"
    MAX_ATTEMPTS = "max_attempts"
    OPTIONS_SCHEMA = "options_schema"


class ReviewField(str, Enum):
    """Members of the review options, JSON."""

    MODE = "mode"
    MIN_CONFIDENCE = "auto_approve_min_confidence"
    TIMEOUT_S = "timeout_s"
    ON_TIMEOUT = "on_timeout"


class AnswerField(str, Enum):
    """Fields of a remembered answer to a request with an Idempotency-Key."""

    FINGERPRINT = "fingerprint"
    #: What the script found, JSON; the answer can be made of it again.
    OUTCOME = "outcome"
    #: Which call of the scripts it was; the same again is that call, sent after a lost reply.
    TOKEN = "token"
    #: Until when the first request may still be waiting for its answer.
    CLAIMED_UNTIL_MS = "claimed_until_ms"
    STATUS_CODE = "status_code"
    BODY = "body"


class OutboxField(str, Enum):
    """Members of an entry of a job's outbox, JSON: all that a webhook's body is made of."""

    SEQ = "seq"
    TYPE = "type"
    TS = "ts"
    STATUS = "status"
    CURRENT_STEP = "current_step"
    #: The event's data, JSON in a string.
    DATA = "data"
