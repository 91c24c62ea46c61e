"""Adds to each operation of the OpenAPI document what middleware requires and answers."""

from __future__ import annotations

from typing import Any

from sluice.gateway.auth.permissions import permission_for
from sluice.gateway.http.error_formats import OpenAIErrorView, WorkflowErrorView
from sluice.gateway.http.paths import OPENAI_CHAT, is_openai, is_workflow
from sluice.gateway.http.problems import MEDIA_TYPE, problem_response

_SAFE = ("get", "head")
#: Errors of every operation, by status; a description by the route takes precedence.
COMMON_ERRORS = {
    "400": "The request is malformed.",
    "408": "The request did not arrive in time.",
    "413": "The body is too long.",
    "421": "The Host header does not name this gateway; see ALLOWED_HOSTS.",
    "431": "The request line and the headers are too long.",
    "503": "The gateway is stopping or has too many connections; see Retry-After.",
}
#: Of requests that change something; added to other reasons for 403.
CROSS_ORIGIN = "The request comes from a page of another site; see ALLOWED_ORIGINS."


def describe_common_errors(schema: dict[str, Any]) -> None:
    """Add COMMON_ERRORS to every operation."""
    for path in schema["paths"].values():
        for method, operation in path.items():
            answers = operation["responses"]
            for status, description in COMMON_ERRORS.items():
                answers.setdefault(status, problem_response(description))
            if method not in _SAFE:
                known = answers.setdefault("403", problem_response(CROSS_ORIGIN))
                if known["description"] != CROSS_ORIGIN:
                    known["description"] += f" {CROSS_ORIGIN}"
            operation["responses"] = dict(sorted(answers.items()))


_JSON = "application/json"
_SSE = "text/event-stream"
_REF = "#/components/schemas/{model}"
#: Statuses that the HTTP protocol may send before the path is known, as problems.
PRE_ROUTING_STATUSES = ("400", "408", "431", "503")


def describe_openai_errors(schema: dict[str, Any]) -> None:
    """Document the errors of the OpenAI API in OpenAI's format."""
    found = {path: item for path, item in schema["paths"].items() if is_openai(path)}
    if not found:
        return
    error = OpenAIErrorView.model_json_schema(ref_template=_REF)
    named = schema["components"]["schemas"]
    named.update(error.pop("$defs"))
    named[OpenAIErrorView.__name__] = error
    error_schema = {"schema": {"$ref": _REF.format(model=OpenAIErrorView.__name__)}}
    for item in found.values():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if status in PRE_ROUTING_STATUSES:
                    answer["content"] = {
                        _JSON: error_schema,
                        MEDIA_TYPE: answer["content"][MEDIA_TYPE],
                    }
                elif int(status) >= 400:
                    answer["content"] = {_JSON: error_schema}
    _describe_stream(found)


def _describe_stream(paths: dict[str, Any]) -> None:
    """Document both media types of a chat completion; FastAPI knows one per status."""
    if OPENAI_CHAT in paths:
        content = paths[OPENAI_CHAT]["post"]["responses"]["200"]["content"]
        stream = content.pop(_SSE)
        whole = {"schema": {"$ref": _REF.format(model="ChatCompletion")}}
        content.update({_JSON: whole, _SSE: stream})


_SCHEME = "api_key"
_DESCRIPTION = (
    "`Authorization: Bearer sluice_…`. Required beyond loopback, or always with AUTH=required. "
    "Create one with `sluice key create`."
)


def describe_auth(schema: dict[str, Any]) -> None:
    """Add the required scope and the errors of authentication to each operation."""
    components = schema.setdefault("components", {})
    components.setdefault("securitySchemes", {})[_SCHEME] = {
        "type": "http",
        "scheme": "bearer",
        "description": _DESCRIPTION,
    }
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            permission = permission_for(method.upper(), path)
            if permission.public:
                continue
            # Optional: on loopback no key is required.
            operation["security"] = [{}, {_SCHEME: []}]
            between = " and " if permission.needs_all else " or "
            scopes = between.join(f"`{scope}`" for scope in sorted(permission.scopes))
            answers = {
                "401": "The API key is missing or not valid.",
                "403": f"The key lacks the scope {scopes}." if scopes else "",
                "503": "Redis does not answer, so the key cannot be checked.",
            }
            for status, description in answers.items():
                if description:
                    operation["responses"].setdefault(status, problem_response(description))


def describe_workflow_errors(schema: dict[str, Any]) -> None:
    """Document the errors of the workflow API in its format."""
    error = WorkflowErrorView.model_json_schema(ref_template=_REF)
    named = schema["components"]["schemas"]
    named.update(error.pop("$defs"))
    named[WorkflowErrorView.__name__] = error
    error_schema = {"schema": {"$ref": _REF.format(model=WorkflowErrorView.__name__)}}
    for path, item in schema["paths"].items():
        if not is_workflow(path):
            continue
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if int(status) < 400:
                    continue
                answer["content"] = {_JSON: error_schema}
                if status in PRE_ROUTING_STATUSES:
                    problem = {"schema": {"$ref": _REF.format(model="ProblemView")}}
                    answer["content"][MEDIA_TYPE] = problem
