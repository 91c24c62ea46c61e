"""The headers of a delivery, with a signature by which the receiver knows that it is ours."""

from __future__ import annotations

import hashlib
import hmac

from common.contracts.workflow import SIGNATURE_VERSION, WEBHOOK_EVENT, WebhookHeader
from common.version import VERSION

#: What a line of the dead letters' file repeats, for whoever sends it again by other means.
PLAIN = {
    "Content-Type": "application/json",
    WebhookHeader.EVENT.value: WEBHOOK_EVENT,
    WebhookHeader.VERSION.value: SIGNATURE_VERSION,
}
USER_AGENT = f"sluice-webhooks/{VERSION}"


def headers_of(body: bytes, secret: bytes, now_s: int) -> dict[str, str]:
    """All headers but Host. A fresh time for each attempt; without a secret no signature."""
    headers = {
        **PLAIN,
        "User-Agent": USER_AGENT,
        "Accept-Encoding": "identity",
        "Connection": "close",
        WebhookHeader.TIMESTAMP.value: str(now_s),
    }
    if secret:
        headers[WebhookHeader.SIGNATURE.value] = signature(body, secret, now_s)
    return headers


def signature(body: bytes, secret: bytes, timestamp_s: int) -> str:
    """HMAC-SHA256 of `{timestamp}.{body}`, where the body is what goes over the wire."""
    signed = str(timestamp_s).encode("ascii") + b"." + body
    return "sha256=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
