"""Reads a JSON body: right type, right syntax, not nested beyond reason."""

from __future__ import annotations

from typing import Any

from starlette.requests import ClientDisconnect, Request

from common import codec
from gateway.problems import Problem

#: Arrays and objects inside each other; deeper JSON is an attack on somebody's parser.
MAX_DEPTH = 64


async def read_json(request: Request) -> Any:
    """The body's value; a Problem says what is wrong with it."""
    _check_type(request.headers.get("content-type", ""))
    body = await _body(request)
    if not body:
        raise Problem(400, "malformed_json", "The body is empty; send a JSON object.")
    return _value(body)


async def read_json_if_any(request: Request) -> Any:
    """The same; an empty object where there is no body, whatever type it is declared as."""
    body = await _body(request)
    if not body:
        return {}
    _check_type(request.headers.get("content-type", ""))
    return _value(body)


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The connection closed within the body.") from None


def _value(body: bytes) -> Any:
    try:
        value = codec.loads(body)
    except ValueError as error:
        raise Problem(400, "malformed_json", f"The body is not JSON: {error}.") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise Problem(
            400, "nested_too_deep", f"The JSON is nested more than {MAX_DEPTH} levels deep."
        )
    return value


def _check_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(
            415,
            "unsupported_media_type",
            "Send the body as JSON, with the header Content-Type: application/json.",
            headers={"Accept-Post": "application/json"},
        )


def _depth(value: Any) -> int:
    """Levels of arrays and objects inside each other, counted without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
    return depth
