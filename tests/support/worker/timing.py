"""Limits of time on a machine that may be busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

TRIES = 3


async def at_best_within(limit_s: float, trial: Callable[[], Awaitable[float]]) -> None:
    """Measure a few times, in seconds; the best counts, because the machine may be busy."""
    took_s = []
    for _ in range(TRIES):
        took_s.append(await trial())
        if took_s[-1] < limit_s:
            return
    raise AssertionError(f"took {min(took_s):.3f} s at best, not {limit_s} s")
