"""What OpenAPI says of answers that any request may get, before a route has seen it."""

from __future__ import annotations

from typing import Any

from gateway.problems import MEDIA_TYPE

_SAFE = ("get", "head")
#: By status; a route's own words for the same status stay.
ANSWERS = {
    "400": "The request is malformed.",
    "408": "The request did not come in time.",
    "413": "The body is too long.",
    "421": "The Host is none of this gateway's names; see ALLOWED_HOSTS.",
    "431": "The request line and the headers are too long.",
    "503": "The gateway is stopping or has too many connections; Retry-After says when to come "
    "back.",
}
#: Of requests that change something.
FOREIGN = "The page that asks is of another site; see ALLOWED_ORIGINS."


def describe_edge(schema: dict[str, Any]) -> None:
    """Add them to every operation of the document."""
    for path in schema["paths"].values():
        for method, operation in path.items():
            answers = operation["responses"]
            for status, description in ANSWERS.items():
                answers.setdefault(status, _problem(description))
            if method not in _SAFE:
                known = answers.setdefault("403", _problem(FOREIGN))
                if known["description"] != FOREIGN:
                    known["description"] += f" {FOREIGN}"
            operation["responses"] = dict(sorted(answers.items()))


def _problem(description: str) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemView"}}}
    return {"description": description, "content": content}
