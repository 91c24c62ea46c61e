"""Names of webhook deliveries: members of a body, how an attempt ends, what a dead letter holds."""

from __future__ import annotations

from enum import Enum
from typing import Final

DEAD_LETTER_CURSOR_PREFIX: Final = "dlq_"
DELIVERY_CURSOR_PREFIX: Final = "due_"
#: Letters kept, each with its body.
DEAD_LETTERS_KEPT: Final = 2_000
#: Seconds that is remembered how far a delivery has got; longer than any wait between two tries.
DELIVERY_TTL_S: Final = 2 * 24 * 3600


class WebhookBodyField:
    """Members of a webhook's body, in this order."""

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

    #: Of the attempt under way; empty for none.
    TOKEN: Final = "token"
    #: Of the attempt that was settled last.
    SETTLED: Final = "settled"
    ATTEMPT: Final = "attempt"
    #: What became of earlier attempts: JSON objects, separated by commas.
    DETAIL: Final = "detail"


class DeliveryOutcome(str, Enum):
    """What becomes of an outbox's first entry after an attempt."""

    OK = "ok"
    RETRY = "retry"
    #: Given up: it goes to the dead letters.
    DEAD = "dead"
    #: Nobody could make sense of it.
    DROP = "drop"


class WebhookDeadLetterField:
    """Fields of a delivery that was given up, in the stream of these."""

    EVENT_ID: Final = "event_id"
    EVENT_TYPE: Final = "event_type"
    JOB_ID: Final = "job_id"
    URL: Final = "url"
    FAILED_MS: Final = "failed_ms"
    ATTEMPTS: Final = "attempts"
    DETAIL: Final = "attempts_detail"
    #: As it was sent, byte for byte.
    BODY: Final = "body"


class RedriveStatus(str, Enum):
    """How far a letter's redrive has got; in `workflow:webhooks:letters`."""

    NONE = "none"
    QUEUED = "queued"
    RETRYING = "retrying"
    OK = "ok"
    FAILED = "failed"


class DeadLetterFileField:
    """Members of a line of the file of deliveries that were given up, and of its parts."""

    EVENT_ID: Final = "event_id"
    EVENT_TYPE: Final = "event_type"
    JOB_ID: Final = "job_id"
    URL: Final = "url"
    FAILED_AT: Final = "failed_at"
    PAYLOAD: Final = "payload"
    ATTEMPTS: Final = "attempts"
    DETAIL: Final = "attempts_detail"
    REPLAY: Final = "replay"
    #: Of an attempt.
    ATTEMPT: Final = "attempt"
    STATUS: Final = "status"
    ERROR: Final = "error"
    RETRYABLE: Final = "retryable"
    AT: Final = "at"
    #: Of the replay.
    METHOD: Final = "method"
    HEADERS: Final = "headers"
    BODY_BASE64: Final = "body_base64"
    ENCODING: Final = "encoding"
    #: Of the line that a redrive adds; of a letter's redrive, over HTTP.
    REDRIVEN_AT: Final = "redriven_at"
    OK: Final = "ok"
    REDRIVE: Final = "redrive"
