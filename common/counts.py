"""How many jobs were accepted, and how many ended in which way, since the queue was first used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from common import codec
from common.contracts.jobs import CountField

#: What HMGET asks the hash of counts for, in the order of `JobCounts`.
COUNT_FIELDS: Final = tuple(field.value for field in CountField)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Sums over all gateways and workers of ours; zeros before the first job."""

    accepted: int = 0
    done: int = 0
    error: int = 0
    canceled: int = 0

    @property
    def ended(self) -> int:
        """How many ended, in whatever way."""
        return self.done + self.error + self.canceled

    @classmethod
    def from_values(cls, values: Sequence[bytes | None]) -> JobCounts:
        """From HMGET of `COUNT_FIELDS`; what a foreign hand made of a number counts as none."""
        return cls(*(codec.integer(value or b"0") for value in values))
