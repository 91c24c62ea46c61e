"""Fields of what workflows keep: the record, its steps, declarations, answers, the outbox."""

from __future__ import annotations

from typing import Final


class WorkflowJobField:
    """Fields of `workflow:job:{id}`. Times are milliseconds."""

    WORKFLOW: Final = "workflow"
    #: The workflow definition at the time the job was created, JSON
    #: (`common.features.workflows.definitions`).
    DEFINITION: Final = "definition"
    STATUS: Final = "status"
    CURRENT_STEP: Final = "current_step"
    DRAFT_STATE: Final = "draft_state"
    STARTED_MS: Final = "started_ms"
    UPDATED_MS: Final = "updated_ms"
    COMPLETED_MS: Final = "completed_ms"
    TTL_S: Final = "ttl_s"
    IDEMPOTENCY_KEY: Final = "idempotency_key"
    #: Whose it is, and how the ids of its core jobs end; empty for nobody's.
    TENANT: Final = "tenant"
    TAIL: Final = "tail"
    #: The client's own, JSON.
    METADATA: Final = "metadata"
    #: The rag namespace that it builds.
    NAMESPACE: Final = "namespace"
    #: JSON: `common.features.workflows.definitions.ReviewOptions`.
    REVIEW: Final = "review"
    #: `1` where each completion starts the next step.
    AUTO_ADVANCE: Final = "auto_advance"
    #: Name of the step up to which an execute wanted it to run; empty for none.
    TARGET: Final = "target"
    WEBHOOK_URL: Final = "webhook_url"
    #: Event types that are delivered, separated by spaces.
    WEBHOOK_EVENTS: Final = "webhook_events"
    WEBHOOK_STATUS: Final = "webhook_status"
    WEBHOOK_MS: Final = "webhook_ms"
    #: Numbers given out so far.
    EVENT_SEQ: Final = "event_seq"
    ITEM_SEQ: Final = "item_seq"
    #: Items under review by status, and changes that were not applied: kept by the scripts.
    PROPOSED: Final = "proposed"
    APPROVED: Final = "approved"
    REJECTED: Final = "rejected"
    APPLIED: Final = "applied"
    PENDING_CHANGES: Final = "pending_changes"
    #: As in `bulk.last_operation`.
    LAST_OPERATION: Final = "last_operation"


class StepField:
    """Fields of a step in `workflow:job:{id}:steps`, each as `{step}.{field}`."""

    STATUS: Final = "status"
    UPDATED_MS: Final = "updated_ms"
    STARTED_MS: Final = "started_ms"
    #: How often it was executed, the execution that counts, and its core job.
    ATTEMPT: Final = "attempt"
    EXECUTION: Final = "execution"
    CORE_JOB: Final = "core_job"
    #: The client's options, JSON.
    OPTIONS: Final = "options"
    SUMMARY: Final = "summary"
    COUNT: Final = "count"
    #: JSON list of `{"code", "message", …}`; empty for none.
    ERRORS: Final = "errors"
    DONE: Final = "done"
    TOTAL: Final = "total"
    #: How many parts it was split into; empty for one that was not.
    PARTS: Final = "parts"
    #: Core jobs of its parts from 1 on, separated by spaces.
    PART_JOBS: Final = "part_jobs"
    #: Token of the operation that undoes it, where it can be.
    UNDO_TOKEN: Final = "undo_token"
    #: Token of what the execution did beyond the workflow, from its first such change on.
    EFFECTS: Final = "effects"
    #: Highest version of items that it had before it was executed again: new ones begin beyond.
    VERSION_FLOOR: Final = "version_floor"


class StepPayloadField:
    """Members of the payload of a step's core job: the tool, and its arguments."""

    TOOL: Final = "tool"
    ARGS: Final = "args"


class MetadataField:
    """Members of a job's metadata that are ours, whatever the client's are."""

    SOURCE_COUNT: Final = "source_count"
    PROPOSAL_COUNT: Final = "proposal_count"
    COMPLETED_STEPS: Final = "completed_steps"
    LAST_RESULT_BY_STEP: Final = "last_result_by_step"


class StepArgumentField:
    """Members of the `args` of a step's core job."""

    JOB: Final = "workflow_job_id"
    STEP: Final = "step"
    EXECUTION: Final = "execution_id"
    #: Which part of a step that was split, from 0 on; absent for the whole.
    PART: Final = "part"
    #: Of an undoing.
    UNDO_TOKEN: Final = "undo_token"


class StepResultField:
    """Members of the result of a step's core job, beside those of its arguments."""

    ITEMS: Final = "items"
    SUMMARY: Final = "summary"
    #: There, and true, where another execution counts, or none: nothing was written.
    SUPERSEDED: Final = "superseded"
    #: There of a part of a split step that has ended while others go on: how many do.
    LEFT: Final = "left"


class UndoResultField:
    """Members of the result of an undoing's core job."""

    ANSWER: Final = "answer"
    UNDONE: Final = "undone"
    ITEMS: Final = "items"
    CODE: Final = "code"


class DefinitionField:
    """Members of a declaration, JSON."""

    NAME: Final = "name"
    DESCRIPTION: Final = "description"
    STEPS: Final = "steps"
    PREFIX: Final = "prefix"
    ITEM_TYPE: Final = "item_type"
    WEIGHT: Final = "weight"
    KIND: Final = "kind"
    REVIEWS: Final = "reviews"
    DRAFT: Final = "draft"
    SETTLES: Final = "settles"
    PROPOSES: Final = "proposes"
    TIMEOUT_S: Final = "timeout_s"
    MAX_ATTEMPTS: Final = "max_attempts"
    OPTIONS_SCHEMA: Final = "options_schema"


class ReviewField:
    """Members of the review options, JSON."""

    MODE: Final = "mode"
    MIN_CONFIDENCE: Final = "auto_approve_min_confidence"
    TIMEOUT_S: Final = "timeout_s"
    ON_TIMEOUT: Final = "on_timeout"


class StoredAnswerField:
    """Fields of a remembered answer to a request with an Idempotency-Key."""

    FINGERPRINT: Final = "fingerprint"
    #: What the script found, JSON; the answer can be made of it again.
    OUTCOME: Final = "outcome"
    #: Which call of the scripts it was; the same again is that call, sent after a lost reply.
    TOKEN: Final = "token"
    #: Until when the first request may still be waiting for its answer.
    CLAIMED_UNTIL_MS: Final = "claimed_until_ms"
    STATUS_CODE: Final = "status_code"
    BODY: Final = "body"


class OutboxField:
    """Members of an entry of a job's outbox, JSON: all that a webhook's body is made of."""

    SEQ: Final = "seq"
    TYPE: Final = "type"
    TS: Final = "ts"
    STATUS: Final = "status"
    CURRENT_STEP: Final = "current_step"
    #: The event's data, JSON in a string.
    DATA: Final = "data"
