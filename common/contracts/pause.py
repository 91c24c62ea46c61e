"""A paused queue: jobs are accepted and wait, those that run go on, no worker takes another."""

from __future__ import annotations

from enum import Enum


class PauseField(str, Enum):
    """Members of the JSON in the key of a paused queue."""

    SINCE_MS = "since_ms"
    BY = "by"
    WHY = "why"


def paused_key(queue: str) -> str:
    """STRING, since when a queue is paused, by whom and why; absent while it is not.

    Its name is also what the control channel says when that changes.
    """
    return f"{queue}:paused"
