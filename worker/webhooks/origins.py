"""Shares out the deliveries under way, so that a receiver that hangs holds up nobody else's."""

from __future__ import annotations

from collections import Counter
from typing import Final

#: Origins of which is remembered that they hang.
MOST_HANGING: Final = 1000


class Origins:
    """How many deliveries go where.

    One origin gets half of the places at most. One whose last delivery ran out of time gets a
    single one until a delivery to it has ended in time; and all such origins together, half.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._half = max(1, places // 2)
        self._busy: Counter[str] = Counter()
        #: Who hung last is at the end.
        self._hanging: dict[str, None] = {}

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return max(0, self._places - sum(self._busy.values()))

    def enter(self, origin: str) -> bool:
        """Take a place for a delivery to this origin, if it may have one now."""
        if not self.free or not self._may_have(origin):
            return False
        self._busy[origin] += 1
        return True

    def leave(self, origin: str, timed_out: bool | None = None) -> None:
        """Give it back; None where nothing was sent."""
        self._busy[origin] -= 1
        if not self._busy[origin]:
            del self._busy[origin]
        if timed_out is not None:
            self._hanging.pop(origin, None)
        if timed_out:
            self._hanging[origin] = None
            if len(self._hanging) > MOST_HANGING:
                del self._hanging[next(iter(self._hanging))]

    def _may_have(self, origin: str) -> bool:
        if origin not in self._hanging:
            return self._busy[origin] < self._half
        hang = sum(count for each, count in self._busy.items() if each in self._hanging)
        return not self._busy[origin] and hang < self._half
