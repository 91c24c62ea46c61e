"""What OpenAPI says of the routes for webhooks: those on their way, and those given up."""

from __future__ import annotations

from typing import Any

from gateway.openapi import problem_answers, request_body
from gateway.openapi_workflow import ONCE
from gateway.workflow.letter_models import RedriveWebhooksRequest

_AWAY = "Redis does not answer."

DELIVERIES: dict[str, Any] = {"responses": problem_answers(_422="The limit is none.", _503=_AWAY)}
LIST: dict[str, Any] = {
    "responses": problem_answers(
        _400="The cursor is none of this list's, or comes with an offset.",
        _422="A parameter is none.",
        _503=_AWAY,
    )
}
REDRIVE: dict[str, Any] = {
    "responses": problem_answers(
        _400="The body is no JSON, or nested too deep; or the Idempotency-Key is malformed, or "
        "differs between header and body.",
        _404="There are no letters of some of these events; nothing was sent again.",
        _409="The first request with this Idempotency-Key has not been answered yet.",
        _413="The body is too long.",
        _415="The body is not declared as JSON.",
        _422="The body does not fit, or the key came with another request.",
        _503=_AWAY,
    ),
    "openapi_extra": {
        "parameters": [ONCE],
        "requestBody": request_body(
            RedriveWebhooksRequest, {"event_ids": ["wf_20260214_001:step.completed:ab12cd34"]}
        ),
    },
}
