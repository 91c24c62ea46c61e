"""Errors as OpenAI's SDKs know them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field

#: Our codes that have a name of theirs.
_CODES = {
    "key_required": "invalid_api_key",
    "invalid_key": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
}
_TYPES = {
    403: "permission_error",
    429: "rate_limit_error",
}
_INVALID, _OURS = "invalid_request_error", "server_error"
_INDEX = re.compile(r"/(\d+)(?=/|\Z)")


class ErrorBody(BaseModel):
    """One error."""

    message: str = Field(description="What happened, and what to do.")
    type: str = Field(
        description="`invalid_request_error`, `permission_error`, `rate_limit_error` or "
        "`server_error`.",
        examples=[_INVALID],
    )
    param: str | None = Field(None, description="The member it is about.", examples=["messages"])
    code: str | None = Field(
        None, description="Stable name of the cause.", examples=["model_not_found"]
    )


class ErrorView(BaseModel):
    """An error, as OpenAI shapes it."""

    error: ErrorBody


def error_view(status: int, code: str, detail: str, pointer: str = "") -> ErrorView:
    """A problem in their words."""
    kind = _TYPES.get(status, _INVALID if status < 500 else _OURS)
    param = _INDEX.sub(r"[\1]", pointer).strip("/").replace("/", ".") or None
    body = ErrorBody(message=detail, type=kind, param=param, code=_CODES.get(code, code))
    return ErrorView(error=body)
