"""What a key may ask for at most, as ENQUEUE wants to know it."""

from __future__ import annotations

from typing import NamedTuple

_MINUTE_US = 60_000_000


class Limits(NamedTuple):
    """A key's rate and quota, and where Redis keeps their state. 0 stands for no limit."""

    rate_key: str
    active_key: str
    #: Microseconds from one job to the next, and how many may come at once.
    interval_us: int = 0
    burst: int = 0
    #: Most jobs that have not ended.
    max_jobs: int = 0


def interval_us(rate_per_min: float) -> int:
    """Microseconds between two jobs at a rate."""
    return max(1, round(_MINUTE_US / rate_per_min))
