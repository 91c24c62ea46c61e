"""The HTTP API as Markdown, from its OpenAPI document.

`python -m gateway.http.openapi.reference` prints it.

`make docs` writes it to docs/api.md; a test fails where that is not what it would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from common.settings.gateway import GatewaySettings
from gateway.app import create_app
from gateway.http.openapi.docs_page import JSON, curl, kind_of, resolved

_HEAD = """# The HTTP API
Made by `make docs` from the OpenAPI document that every gateway serves at `/openapi.json`; the same
as a page is at `/docs`. Errors are problems as in RFC 9457 (`application/problem+json`), on
`/api/workflow` the envelope `{"success": false, "errors": […]}`. What each name means is in
[contract.md](../contract.md), who may do what in [security.md](security.md).
"""


def render(document: dict[str, Any]) -> str:
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            [tag, *_] = operation.get("tags") or ["other"]
            groups.setdefault(tag, []).append((method, path, operation))
    parts = [_HEAD, "\n".join(_contents(groups))]
    for tag, operations in groups.items():
        parts.append(f"## {tag.capitalize()}")
        parts += [_operation(document, *operation) for operation in operations]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _contents(groups: dict[str, list[tuple[str, str, dict[str, Any]]]]) -> Iterator[str]:
    yield "| | | |\n|---|---|---|"
    for tag, operations in groups.items():
        for method, path, operation in operations:
            yield f"| {tag} | `{method.upper()} {path}` | {_cell(operation.get('summary', ''))} |"
            tag = ""  # said once


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"### {method.upper()} {path}", operation.get("summary", "")]
    if operation.get("description", "") != operation.get("summary", ""):
        parts.append(operation.get("description", ""))
    parts.append(f"```\n{curl(method, path, operation)}\n```")
    parameters = operation.get("parameters", [])
    if parameters:
        parts.append(_table("parameter", _parameters(document, parameters)))
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    if body:
        fields = list(_fields(document, resolved(document, body["schema"])))
        parts.append(_table("body, as JSON", fields) if fields else "")
    parts.append(_table("answer", _answers(document, operation["responses"])))
    return "\n\n".join(part for part in parts if part)


def _table(head: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {head} | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {left} | {_cell(right)} |" for left, right in rows)])


def _parameters(
    document: dict[str, Any], parameters: list[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    for parameter in parameters:
        kind = _cell(kind_of(document, parameter.get("schema", {})))
        yield f"`{parameter['name']}` {parameter['in']}, {kind}", parameter.get("description", "")


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    needed = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        kind = _cell(kind_of(document, part)) + (", required" if name in needed else "")
        yield f"`{name}` {kind}", part.get("description", "")


def _answers(document: dict[str, Any], responses: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for status, response in sorted(responses.items()):
        shown = response.get("description", "")
        for media_type, media in response.get("content", {}).items():
            if int(status) < 400:
                fields = resolved(document, media.get("schema", {})).get("properties", {})
                shown += f" `{media_type}` {', '.join(fields)}".rstrip()
        yield f"`{status}`", shown


def _cell(text: str) -> str:
    """Text that stays within a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def reference() -> str:
    """The page for a gateway as shipped, whatever this machine's settings are."""
    settings = GatewaySettings.model_construct()
    return render(create_app(settings).openapi())


if __name__ == "__main__":
    print(reference(), end="")
