"""What OpenAPI says of the routes of dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from gateway.dlq_models import RedriveRequest
from gateway.openapi import in_path, problem_answers, request_body

_ID = "The id from the list."
_EXAMPLE = "1760000000000-0"
_AWAY = "Redis does not answer."
_UNKNOWN = "No such dead letter, or no longer."

LetterPath = Annotated[str, Path(description=_ID, examples=[_EXAMPLE])]

LIST: dict[str, Any] = {
    "responses": problem_answers(_422="A parameter is out of its range.", _503=_AWAY)
}
GROUPS: dict[str, Any] = {"responses": problem_answers(_503=_AWAY)}
READ_ONE: dict[str, Any] = {"responses": problem_answers(_404=_UNKNOWN, _503=_AWAY)}
PURGE_ONE: dict[str, Any] = {"responses": problem_answers(_404=_UNKNOWN, _503=_AWAY)}
PURGE_MANY: dict[str, Any] = {
    "responses": problem_answers(
        _400="No reason, fingerprint or all, or two of them.",
        _422="There is no such reason, or no fingerprint looks like this.",
        _503=_AWAY,
    )
}
REDRIVE_ONE: dict[str, Any] = {
    "responses": problem_answers(
        _404=_UNKNOWN,
        _422="The message has no known task, or no JSON object as its payload.",
        _429="The schedule is full; Retry-After says when to come back.",
        _503=_AWAY,
    ),
    "openapi_extra": {"parameters": [in_path("letter_id", _ID, _EXAMPLE)]},
}
REDRIVE_MANY: dict[str, Any] = {
    "responses": problem_answers(
        _400="The body is no JSON.",
        _413="The body is too long.",
        _415="The body is not declared as JSON.",
        _422="The body does not fit the schema.",
        _503="Redis does not answer. Some may be redriven; the same request again goes on.",
    ),
    "openapi_extra": {
        "requestBody": request_body(
            RedriveRequest, {"all": True, "limit": 100, "rate_per_s": 10, "dry_run": True}
        )
    },
}
