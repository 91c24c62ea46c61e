"""Names of webhook deliveries: members of the body, outcomes, dead letters."""

from __future__ import annotations

from enum import Enum
from typing import Final

DEAD_LETTER_CURSOR_PREFIX: Final = "dlq_"
DELIVERY_CURSOR_PREFIX: Final = "due_"
#: Dead letters kept, each with its body.
DEAD_LETTERS_KEPT: Final = 2_000
#: Seconds the state of a delivery is kept; longer than any delay between two attempts.
DELIVERY_TTL_S: Final = 2 * 24 * 3600


class WebhookBodyField:
    """Members of a webhook body, in this order."""

    EVENT_ID: Final = "event_id"
    EVENT_TYPE: Final = "event_type"
    JOB_ID: Final = "job_id"
    WORKFLOW: Final = "workflow"
    STATUS: Final = "status"
    CURRENT_STEP: Final = "current_step"
    PAYLOAD: Final = "payload"
    EMITTED_AT: Final = "emitted_at"


class DeliveryField:
    """Fields of `workflow:webhooks:delivery:{name}`."""

    #: Token of the attempt in progress; empty without one.
    TOKEN: Final = "token"
    #: Token of the attempt that was settled last.
    SETTLED: Final = "settled"
    ATTEMPT: Final = "attempt"
    #: Results of earlier attempts: JSON objects, comma-separated.
    DETAIL: Final = "detail"


class DeliveryOutcome(str, Enum):
    """What happens to the first entry of an outbox after an attempt."""

    OK = "ok"
    RETRY = "retry"
    #: Dead-lettered.
    DEAD = "dead"
    #: Invalid entry.
    DROP = "drop"


class WebhookDeadLetterField:
    """Fields of a dead-lettered delivery."""

    EVENT_ID: Final = "event_id"
    EVENT_TYPE: Final = "event_type"
    JOB_ID: Final = "job_id"
    URL: Final = "url"
    FAILED_MS: Final = "failed_ms"
    ATTEMPTS: Final = "attempts"
    DETAIL: Final = "attempts_detail"
    #: Exactly as it was sent.
    BODY: Final = "body"


class RedriveStatus(str, Enum):
    """State of a dead letter's redrive, in `workflow:webhooks:letters`."""

    NONE = "none"
    QUEUED = "queued"
    RETRYING = "retrying"
    OK = "ok"
    FAILED = "failed"


class DeadLetterFileField:
    """Members of a line in the dead-letter file, and of its parts."""

    EVENT_ID: Final = "event_id"
    EVENT_TYPE: Final = "event_type"
    JOB_ID: Final = "job_id"
    URL: Final = "url"
    FAILED_AT: Final = "failed_at"
    PAYLOAD: Final = "payload"
    ATTEMPTS: Final = "attempts"
    DETAIL: Final = "attempts_detail"
    REPLAY: Final = "replay"
    #: Members of an attempt.
    ATTEMPT: Final = "attempt"
    STATUS: Final = "status"
    ERROR: Final = "error"
    RETRYABLE: Final = "retryable"
    AT: Final = "at"
    #: Members of the replay.
    METHOD: Final = "method"
    HEADERS: Final = "headers"
    BODY_BASE64: Final = "body_base64"
    ENCODING: Final = "encoding"
    #: Members of the line that a redrive appends, and of a redrive in the API.
    REDRIVEN_AT: Final = "redriven_at"
    OK: Final = "ok"
    REDRIVE: Final = "redrive"
