"""Settings of a gateway whose Redis has replicas."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class ReplicationSettings(BaseSettings):
    """How many replicas must have a change before a client is told of it."""

    wait_replicas: int = Field(
        0,
        ge=0,
        le=100,
        description="Replicas that must have a change before the client is told that it was made; "
        "fewer in time: 503 `not_replicated`. 0: the master's word is enough.",
    )
    wait_timeout_ms: int = Field(
        1000, ge=1, le=10_000, description="Milliseconds that they get for it."
    )

    @property
    def wait_s(self) -> float:
        """Seconds that an answer may be held back for replicas."""
        return self.wait_timeout_ms / 1000 if self.wait_replicas else 0.0
