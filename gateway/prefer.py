"""RFC 7240: how long a client would rather wait than ask again."""

from __future__ import annotations

import re

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,300})\"?", re.IGNORECASE)


def wait_seconds(prefer: str | None, most_s: float) -> float:
    """Seconds from `Prefer: wait=N`, bounded; 0 where it is absent or unreadable."""
    match = _WAIT.search(prefer) if prefer else None
    return min(float(match[1]), most_s) if match else 0.0
