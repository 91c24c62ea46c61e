"""What OpenAPI says of sessions at the dashboard."""

from __future__ import annotations

from typing import Any

from common.contracts.access import KEY_PREFIX
from gateway.dashboard.models import SignIn
from gateway.openapi import header, problem_answers, request_body

_EXAMPLE = {"key": f"{KEY_PREFIX}k3x9q2ab_…", "actions": False}
_PAGE = header("X-Sluice-UI", "Needed: what pages of the dashboard send.", "1")
_FOREIGN = "It does not come from a page of the dashboard, or the key has not the scope `ui`."

READ_SESSION: dict[str, Any] = {
    "responses": problem_answers(_503="Redis does not answer."),
}
SIGN_IN: dict[str, Any] = {
    "openapi_extra": {"parameters": [_PAGE], "requestBody": request_body(SignIn, _EXAMPLE)},
    "responses": {
        200: {"description": "Signed in; the cookie lasts eight hours."},
        **problem_answers(
            _400="The body is not JSON.",
            _401="The key is not valid.",
            _403=_FOREIGN,
            _415="The body is declared as something else.",
            _422="The request does not fit the schema.",
            _503="Redis does not answer.",
        ),
    },
}
SIGN_OUT: dict[str, Any] = {
    "openapi_extra": {"parameters": [_PAGE]},
    "responses": {
        204: {"description": "Nobody is signed in any more."},
        **problem_answers(_403=_FOREIGN, _503="Redis does not answer."),
    },
}
