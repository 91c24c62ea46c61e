"""What the arguments of the shipped tools have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from worker.features.tools.errors import ToolFailed


class Arguments(BaseModel):
    """Unknown members are refused, and numbers are not read out of strings."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ToolInputError(ToolFailed):
    """The arguments make no sense together; another attempt would change nothing."""

    permanent = True
