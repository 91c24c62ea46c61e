"""What OpenAPI says of the routes of API keys and of the trail."""

from __future__ import annotations

from typing import Any

from gateway.key_models import EXAMPLE_KEY, KeyRequest, RotateRequest
from gateway.openapi import in_path, problem_answers, request_body

_AWAY = "Redis does not answer, or what is to be done cannot be written down."
_UNKNOWN = "No such key."
_KEY_ID = in_path("key_id", "The id from the list.", "k3x9q2ab")
_BODY = {
    "_400": "The body is no JSON.",
    "_413": "The body is too long.",
    "_415": "The body is not declared as JSON.",
    "_422": "The body does not fit the schema.",
}

LIST_KEYS: dict[str, Any] = {"responses": problem_answers(_503=_AWAY)}
CREATE_KEY: dict[str, Any] = {
    "responses": problem_answers(**_BODY, _409="There are as many keys as may be.", _503=_AWAY),
    "openapi_extra": {"requestBody": request_body(KeyRequest, EXAMPLE_KEY)},
}
READ_KEY: dict[str, Any] = {
    "responses": problem_answers(_404=_UNKNOWN, _503=_AWAY),
    "openapi_extra": {"parameters": [_KEY_ID]},
}
ROTATE_KEY: dict[str, Any] = {
    "responses": problem_answers(**_BODY, _404=_UNKNOWN, _503=_AWAY),
    "openapi_extra": {
        "parameters": [_KEY_ID],
        "requestBody": request_body(RotateRequest, {"grace_s": 3600}, required=False),
    },
}
REVOKE_KEY: dict[str, Any] = READ_KEY
READ_TRAIL: dict[str, Any] = {
    "responses": problem_answers(_422="A parameter is out of its range.", _503=_AWAY)
}
