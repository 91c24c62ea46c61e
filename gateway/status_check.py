"""What every part of `/v1/status` has: how it is, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Level(str, Enum):
    """How a part is, as draft-inadarei-api-health-check names it."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    """One part, how it is, and what to look at if it is not well."""

    model_config = ConfigDict(populate_by_name=True)

    status: Level = Level.PASS
    output: str | None = Field(None, description="What is wrong; only where something is.")


def warning(words: Sequence[str]) -> dict[str, Any]:
    """The members of a part that somebody should look at, if there are any words for it."""
    return {"status": Level.WARN, "output": "; ".join(words)} if words else {}
