"""Errors as clients of the workflow API know them: an envelope that can hold several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from common import codec
from common.contracts.workflow import WorkflowError

#: Codes of the rest of the gateway that have a name of their own here.
_CODES = {
    "invalid_request": WorkflowError.INVALID.value,
    "malformed_json": WorkflowError.BAD_JSON.value,
    "body_too_large": WorkflowError.TOO_LARGE.value,
}
_INDEX = re.compile(r"/(\d+)(?=/|\Z)")


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


def code_of(code: str) -> str:
    """A cause by its name here."""
    return _CODES.get(code, code)


def field_of(pointer: str) -> str | None:
    """A place in a body as its clients write it: `steps.sources[0]`."""
    parts = _INDEX.sub(r"[\1]", pointer).strip("/").replace("/", ".")
    return parts.replace("~1", "/").replace("~0", "~") or None


def envelope(
    job_id: str | None,
    errors: Sequence[ErrorItem],
    detail: str,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The answer's body; `extra` are members beside those that every error has."""
    view = WorkflowErrorView(job_id=job_id, errors=list(errors), detail=detail)
    return codec.dumps({**view.model_dump(), **(extra or {})})
