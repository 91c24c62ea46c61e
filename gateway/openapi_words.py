"""An OpenAPI document in words, for people: types, and commands to try."""

from __future__ import annotations

import json
from typing import Any

JSON = "application/json"
STREAM = "text/event-stream"
_BASE = "http://localhost:8080"


def kind_of(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A type in a few words: `integer 1 to 200`, `chat | plan`, `string or null`."""
    schema = resolved(document, schema)
    if "anyOf" in schema:
        return " or ".join(kind_of(document, choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"array of {kind_of(document, schema.get('items', {}))}"
    if "format" in schema:
        kind += f" ({schema['format']})"
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("maxLength"))
    if least is not None and most is not None:
        return f"{kind}, {least} to {most}"
    return kind if most is None else f"{kind}, at most {most}"


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one that it refers to."""
    reference = schema.get("$ref", "")
    if not reference:
        return schema
    named: dict[str, Any] = document["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return {**named, **schema, "$ref": ""}


def curl(method: str, path: str, operation: dict[str, Any]) -> str:
    """A command that does it."""
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", f"${parameter['name'].upper()}")
    parts = ["curl"] if method == "get" else ["curl", "-X", method.upper()]
    if STREAM in operation["responses"].get("200", {}).get("content", {}):
        parts.insert(1, "-N")  # shows each event as it comes
    parts.append(f'"{_BASE}{path}"' if "$" in path else _BASE + path)
    if body is not None:
        parts += ["-H", f"'Content-Type: {JSON}'", "\\\n "]
        written = json.dumps(_example(body), ensure_ascii=False).replace("'", "'\\''")
        parts += ["-d", f"'{written}'"]
    return " ".join(parts)


def _example(body: dict[str, Any]) -> Any:
    examples = body.get("schema", {}).get("examples") or [{}]
    return body.get("example", examples[0])
