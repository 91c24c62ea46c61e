"""Errors as clients of the workflow API know them: an envelope that can hold several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from common import codec
from common.contracts.workflow.statuses import WorkflowError

#: Our codes that have a name of theirs.
_OPENAI_CODES = {
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


class OpenAIErrorBody(BaseModel):
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


class OpenAIErrorView(BaseModel):
    """An error, as OpenAI shapes it."""

    error: OpenAIErrorBody


def openai_error_view(status: int, code: str, detail: str, pointer: str = "") -> OpenAIErrorView:
    kind = _TYPES.get(status, _INVALID if status < 500 else _OURS)
    param = _INDEX.sub(r"[\1]", pointer).strip("/").replace("/", ".") or None
    body = OpenAIErrorBody(
        message=detail, type=kind, param=param, code=_OPENAI_CODES.get(code, code)
    )
    return OpenAIErrorView(error=body)


#: Codes of the rest of the gateway that have a name of their own here.
_WORKFLOW_CODES = {
    "invalid_request": WorkflowError.INVALID.value,
    "malformed_json": WorkflowError.BAD_JSON.value,
    "body_too_large": WorkflowError.TOO_LARGE.value,
}


class ErrorItem(BaseModel):
    """One thing that is wrong."""

    code: str = Field(description="Stable name of the cause.", examples=["step_in_progress"])
    message: str = Field(description="What happened, and what to do.")
    field: str | None = Field(None, description="The member that it is about.", examples=[None])
    item_id: str | None = Field(None, description="The item that it is about.", examples=[None])


class WorkflowErrorView(BaseModel):
    """A request that was not done."""

    success: bool = Field(False, description="Always false.", examples=[False])
    job_id: str | None = Field(
        None, description="The job that was asked for.", examples=["wf_20260214_001"]
    )
    errors: list[ErrorItem]
    detail: str = Field(description="The first of them, in words.")


def workflow_code(code: str) -> str:
    """A cause by its name here."""
    return _WORKFLOW_CODES.get(code, code)


def member_path(pointer: str) -> str | None:
    """A place in a body as its clients write it: `steps.sources[0]`."""
    parts = _INDEX.sub(r"[\1]", pointer).strip("/").replace("/", ".")
    return parts.replace("~1", "/").replace("~0", "~") or None


def workflow_envelope(
    job_id: str | None,
    errors: Sequence[ErrorItem],
    detail: str,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The answer's body; `extra` are members beside those that every error has."""
    view = WorkflowErrorView(job_id=job_id, errors=list(errors), detail=detail)
    return codec.dumps({**view.model_dump(), **(extra or {})})
