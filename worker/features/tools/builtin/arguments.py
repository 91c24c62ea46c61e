"""Common base of the built-in tools' arguments."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sluice.worker.features.tools.errors import ToolFailed


class Arguments(BaseModel):
    """Rejects unknown members and does not convert strings to numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ToolInputError(ToolFailed):
    """The arguments are invalid in combination; retrying does not help."""

    permanent = True
