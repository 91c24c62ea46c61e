"""Fields of workflow data: job, steps, definitions, stored answers, outbox."""

from __future__ import annotations

from typing import Final


class WorkflowJobField:
    """Fields of `workflow:job:{id}`. Times are in Unix milliseconds."""

    WORKFLOW: Final = "workflow"
    #: The workflow definition at the time the job was created, JSON
    #: (`sluice.common.features.workflows.definitions`).
    DEFINITION: Final = "definition"
    STATUS: Final = "status"
    CURRENT_STEP: Final = "current_step"
    DRAFT_STATE: Final = "draft_state"
    STARTED_MS: Final = "started_ms"
    UPDATED_MS: Final = "updated_ms"
    COMPLETED_MS: Final = "completed_ms"
    TTL_S: Final = "ttl_s"
    IDEMPOTENCY_KEY: Final = "idempotency_key"
    #: The owner, and the suffix of its core job ids; empty without an owner.
    TENANT: Final = "tenant"
    TAIL: Final = "tail"
    #: The client's metadata (JSON).
    METADATA: Final = "metadata"
    #: The rag namespace that the job writes to.
    NAMESPACE: Final = "namespace"
    #: JSON: `sluice.common.features.workflows.definitions.ReviewOptions`.
    REVIEW: Final = "review"
    #: `1` if each completed step starts the next one.
    AUTO_ADVANCE: Final = "auto_advance"
    #: Step up to which an execute request runs; empty without one.
    TARGET: Final = "target"
    WEBHOOK_URL: Final = "webhook_url"
    #: Event types to deliver, separated by spaces.
    WEBHOOK_EVENTS: Final = "webhook_events"
    WEBHOOK_STATUS: Final = "webhook_status"
    WEBHOOK_MS: Final = "webhook_ms"
    #: The last number assigned.
    EVENT_SEQ: Final = "event_seq"
    ITEM_SEQ: Final = "item_seq"
    #: Numbers of items under review by status, and of unapplied changes; maintained by the scripts.
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
    #: Number of executions, the current execution, and its core job.
    ATTEMPT: Final = "attempt"
    EXECUTION: Final = "execution"
    CORE_JOB: Final = "core_job"
    #: The client's options (JSON).
    OPTIONS: Final = "options"
    SUMMARY: Final = "summary"
    COUNT: Final = "count"
    #: JSON list of `{"code", "message", …}`; empty for none.
    ERRORS: Final = "errors"
    DONE: Final = "done"
    TOTAL: Final = "total"
    #: Number of parts of a split step; empty if it is not split.
    PARTS: Final = "parts"
    #: Core jobs of its parts from 1 on, separated by spaces.
    PART_JOBS: Final = "part_jobs"
    #: Token of the operation that can be undone, if any.
    UNDO_TOKEN: Final = "undo_token"
    #: Token of the execution's effects outside the workflow, from the first one on.
    EFFECTS: Final = "effects"
    #: Highest item version before the step was executed again: new items start above it.
    VERSION_FLOOR: Final = "version_floor"


class StepPayloadField:
    """Members of the payload of a step's core job: the tool and its arguments."""

    TOOL: Final = "tool"
    ARGS: Final = "args"


class MetadataField:
    """Members of a job's metadata that Sluice sets."""

    SOURCE_COUNT: Final = "source_count"
    PROPOSAL_COUNT: Final = "proposal_count"
    COMPLETED_STEPS: Final = "completed_steps"
    LAST_RESULT_BY_STEP: Final = "last_result_by_step"


class StepArgumentField:
    """Members of the `args` of a step's core job."""

    JOB: Final = "workflow_job_id"
    STEP: Final = "step"
    EXECUTION: Final = "execution_id"
    #: Number of the part of a split step, from 0; absent for the whole step.
    PART: Final = "part"
    #: Only for an undo.
    UNDO_TOKEN: Final = "undo_token"


class StepResultField:
    """Members of the result of a step's core job in addition to its arguments."""

    ITEMS: Final = "items"
    SUMMARY: Final = "summary"
    #: Present and true if another execution is current, or none: nothing was written.
    SUPERSEDED: Final = "superseded"
    #: Only for a part of a split step while others are running: how many are left.
    LEFT: Final = "left"


class UndoResultField:
    """Members of the result of an undo's core job."""

    ANSWER: Final = "answer"
    UNDONE: Final = "undone"
    ITEMS: Final = "items"
    CODE: Final = "code"


class DefinitionField:
    """Members of a workflow definition (JSON)."""

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
    """Members of the review options (JSON)."""

    MODE: Final = "mode"
    MIN_CONFIDENCE: Final = "auto_approve_min_confidence"
    TIMEOUT_S: Final = "timeout_s"
    ON_TIMEOUT: Final = "on_timeout"


class StoredAnswerField:
    """Fields of a stored answer to a request with an Idempotency-Key."""

    FINGERPRINT: Final = "fingerprint"
    #: The script's answer (JSON), from which the response can be rebuilt.
    OUTCOME: Final = "outcome"
    #: Token of the script call; the same token again is that call, repeated after a lost reply.
    TOKEN: Final = "token"
    #: Until when the first request may still be in progress.
    CLAIMED_UNTIL_MS: Final = "claimed_until_ms"
    STATUS_CODE: Final = "status_code"
    BODY: Final = "body"


class OutboxField:
    """Members of an outbox entry (JSON): everything that a webhook body needs."""

    SEQ: Final = "seq"
    TYPE: Final = "type"
    TS: Final = "ts"
    STATUS: Final = "status"
    CURRENT_STEP: Final = "current_step"
    #: The event's data, JSON in a string.
    DATA: Final = "data"
