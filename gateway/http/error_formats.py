"""Error formats besides RFC 9457: OpenAI's, and the envelope of the workflow API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from sluice.common import codec
from sluice.common.contracts.workflow.statuses import WorkflowError

#: OpenAI's names for codes of this API.
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

    message: str = Field(description="What is wrong, and what to do.")
    type: str = Field(
        description="`invalid_request_error`, `permission_error`, `rate_limit_error` or "
        "`server_error`.",
        examples=[_INVALID],
    )
    param: str | None = Field(
        None, description="The member that caused the error.", examples=["messages"]
    )
    code: str | None = Field(
        None, description="Stable name of the error.", examples=["model_not_found"]
    )


class OpenAIErrorView(BaseModel):
    """An error in OpenAI's format."""

    error: OpenAIErrorBody


def openai_error_view(status: int, code: str, detail: str, pointer: str = "") -> OpenAIErrorView:
    kind = _TYPES.get(status, _INVALID if status < 500 else _OURS)
    param = _INDEX.sub(r"[\1]", pointer).strip("/").replace("/", ".") or None
    body = OpenAIErrorBody(
        message=detail, type=kind, param=param, code=_OPENAI_CODES.get(code, code)
    )
    return OpenAIErrorView(error=body)


#: The workflow API's names for codes of the rest of the gateway.
_WORKFLOW_CODES = {
    "invalid_request": WorkflowError.INVALID.value,
    "malformed_json": WorkflowError.BAD_JSON.value,
    "body_too_large": WorkflowError.TOO_LARGE.value,
}


class ErrorItem(BaseModel):
    """One error of a request."""

    code: str = Field(description="Stable name of the error.", examples=["step_in_progress"])
    message: str = Field(description="What is wrong, and what to do.")
    field: str | None = Field(
        None, description="The member that caused the error.", examples=[None]
    )
    item_id: str | None = Field(
        None, description="The item that caused the error.", examples=[None]
    )


class WorkflowErrorView(BaseModel):
    """A request that failed."""

    success: bool = Field(False, description="Always false.", examples=[False])
    job_id: str | None = Field(
        None, description="The job in the path of the request.", examples=["wf_20260214_001"]
    )
    errors: list[ErrorItem]
    detail: str = Field(description="Message of the first error.")


def workflow_code(code: str) -> str:
    """The workflow API's name for an error code."""
    return _WORKFLOW_CODES.get(code, code)


def member_path(pointer: str) -> str | None:
    """A JSON pointer in the notation of the workflow API: `steps.sources[0]`."""
    parts = _INDEX.sub(r"[\1]", pointer).strip("/").replace("/", ".")
    return parts.replace("~1", "/").replace("~0", "~") or None


def workflow_envelope(
    job_id: str | None,
    errors: Sequence[ErrorItem],
    detail: str,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of an error response. `extra`: additional members."""
    view = WorkflowErrorView(job_id=job_id, errors=list(errors), detail=detail)
    return codec.dumps({**view.model_dump(), **(extra or {})})
