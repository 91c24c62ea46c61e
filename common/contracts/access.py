"""Who may do what: names of API keys, their limits and the trail of what was done with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scope(str, Enum):
    """What a key may be used for."""

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    METRICS = "metrics"
    UI = "ui"
    ADMIN = "admin"


@dataclass(frozen=True)
class AccessKeys:
    """Every Redis key of access control. Workers have no business here."""

    @property
    def records(self) -> str:
        """HASH, key id to the JSON of its record; secrets only as digests."""
        return "access:keys"

    @property
    def used(self) -> str:
        """HASH, key id to when it was last used, in milliseconds."""
        return "access:used"

    @property
    def trail(self) -> str:
        """STREAM, what was done by whom with administrative rights; capped."""
        return "access:trail"

    def rate(self, key_id: str) -> str:
        """STRING, when the next job of a key with a rate would be on time, in microseconds."""
        return f"access:rate:{key_id}"

    def active(self, key_id: str) -> str:
        """ZSET, jobs of a key with a quota that may not have ended yet, by their acceptance."""
        return f"access:active:{key_id}"
