"""Builds the request of a webhook.

Its body is a pure function of the outbox entry, so retries send the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.webhooks import WebhookBodyField
from sluice.common.contracts.workflow.fields import OutboxField
from sluice.common.contracts.workflow.statuses import (
    SIGNATURE_VERSION,
    WEBHOOK_EVENT,
    WebhookHeader,
)
from sluice.common.version import VERSION

_DIGITS: Final = 8


class CallbackEvent(NamedTuple):
    """One event, ready to be sent."""

    event_id: str
    event_type: str
    body: bytes


def build_callback(job_id: str, workflow: str, entry: bytes) -> CallbackEvent:
    """The event of an outbox entry. Raises ValueError for an invalid entry."""
    stored = codec.loads(entry)
    if not isinstance(stored, Mapping):
        raise ValueError("not an object")
    try:
        seq = int(stored[OutboxField.SEQ])
        kind = str(stored[OutboxField.TYPE])
        event = {
            WebhookBodyField.EVENT_ID: make_event_id(job_id, kind, seq),
            WebhookBodyField.EVENT_TYPE: kind,
            WebhookBodyField.JOB_ID: job_id,
            WebhookBodyField.WORKFLOW: workflow,
            WebhookBodyField.STATUS: stored[OutboxField.STATUS],
            WebhookBodyField.CURRENT_STEP: stored[OutboxField.CURRENT_STEP],
            WebhookBodyField.PAYLOAD: _payload(stored[OutboxField.DATA]),
            WebhookBodyField.EMITTED_AT: format_rfc3339(int(stored[OutboxField.TS])),
        }
    except (KeyError, TypeError, OverflowError, OSError) as error:
        raise ValueError(f"not an outbox entry: {error!r}") from error
    body = codec.dumps(dict(event.items()))
    return CallbackEvent(event[WebhookBodyField.EVENT_ID], kind, body)


def make_event_id(job_id: str, kind: str, seq: int) -> str:
    """Id of the event, by which receivers detect duplicates."""
    digest = hashlib.sha256(f"{job_id}|{kind}|{seq}".encode()).hexdigest()
    return f"{job_id}:{kind}:{digest[:_DIGITS]}"


def format_rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _payload(data: Any) -> Any:
    """Data of the event: JSON in a string, because the script does not decode it."""
    return codec.loads(data.encode()) if isinstance(data, str) and data else {}


#: Headers repeated in the dead-letter file, for replays by other means.
FIXED_HEADERS = {
    "Content-Type": "application/json",
    WebhookHeader.EVENT: WEBHOOK_EVENT,
    WebhookHeader.VERSION: SIGNATURE_VERSION,
}
USER_AGENT = f"sluice-webhooks/{VERSION}"


def request_headers(body: bytes, secret: bytes, now_s: int) -> dict[str, str]:
    """All headers but Host.

    Each attempt has a new timestamp; without a secret there is no signature.
    """
    headers = {
        **FIXED_HEADERS,
        "User-Agent": USER_AGENT,
        "Accept-Encoding": "identity",
        "Connection": "close",
        WebhookHeader.TIMESTAMP: str(now_s),
    }
    if secret:
        headers[WebhookHeader.SIGNATURE] = signature(body, secret, now_s)
    return headers


def signature(body: bytes, secret: bytes, timestamp_s: int) -> str:
    """HMAC-SHA256 of `{timestamp}.{body}`, where body is the exact bytes sent."""
    signed = str(timestamp_s).encode("ascii") + b"." + body
    return "sha256=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
