"""Names of webhook deliveries: members of a body, how an attempt ends, what a dead letter holds."""

from __future__ import annotations

from enum import Enum
from typing import Final

LETTER_CURSOR_PREFIX: Final = "dlq_"
#: Letters kept, each with its body.
LETTERS_KEPT: Final = 2_000
#: Seconds that is remembered how far a delivery has got; longer than any wait between two tries.
DELIVERY_KEPT_S: Final = 2 * 24 * 3600


class CallbackField(str, Enum):
    """Members of a webhook's body, in this order."""

    EVENT_ID = "event_id"
    EVENT_TYPE = "event_type"
    JOB_ID = "job_id"
    WORKFLOW = "workflow"
    STATUS = "status"
    CURRENT_STEP = "current_step"
    PAYLOAD = "payload"
    EMITTED_AT = "emitted_at"


class DeliveryField(str, Enum):
    """Fields of `workflow:webhooks:delivery:{name}`."""

    #: Of the attempt under way; empty for none.
    TOKEN = "token"
    #: Of the attempt that was settled last.
    SETTLED = "settled"
    ATTEMPT = "attempt"
    #: What became of earlier attempts: JSON objects, separated by commas.
    DETAIL = "detail"


class Settlement(str, Enum):
    """What becomes of an outbox's first entry after an attempt."""

    OK = "ok"
    RETRY = "retry"
    #: Given up: it goes to the dead letters.
    DEAD = "dead"
    #: Nobody could make sense of it.
    DROP = "drop"


class LetterField(str, Enum):
    """Fields of a delivery that was given up, in the stream of these."""

    EVENT_ID = "event_id"
    EVENT_TYPE = "event_type"
    JOB_ID = "job_id"
    URL = "url"
    FAILED_MS = "failed_ms"
    ATTEMPTS = "attempts"
    DETAIL = "attempts_detail"
    #: As it was sent, byte for byte.
    BODY = "body"


class RedriveStatus(str, Enum):
    """How far a letter's redrive has got; in `workflow:webhooks:letters`."""

    NONE = "none"
    QUEUED = "queued"
    RETRYING = "retrying"
    OK = "ok"
    FAILED = "failed"


class LetterLine(str, Enum):
    """Members of a line of the file of deliveries that were given up, and of its parts."""

    EVENT_ID = "event_id"
    EVENT_TYPE = "event_type"
    JOB_ID = "job_id"
    URL = "url"
    FAILED_AT = "failed_at"
    PAYLOAD = "payload"
    ATTEMPTS = "attempts"
    DETAIL = "attempts_detail"
    REPLAY = "replay"
    #: Of an attempt.
    ATTEMPT = "attempt"
    STATUS = "status"
    ERROR = "error"
    RETRYABLE = "retryable"
    AT = "at"
    #: Of the replay.
    METHOD = "method"
    HEADERS = "headers"
    BODY_BASE64 = "body_base64"
    ENCODING = "encoding"
    #: Of the line that a redrive adds; of a letter's redrive, over HTTP.
    REDRIVEN_AT = "redriven_at"
    OK = "ok"
    REDRIVE = "redrive"
