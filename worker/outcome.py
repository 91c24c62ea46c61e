"""The closed set of what can become of an attempt."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """What became of an attempt."""

    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"
    #: The job gets another attempt later.
    RETRY = "retry"
    #: The same, and the attempt does not count: it could not be done just now.
    POSTPONED = "postponed"
    #: Handed back, for another worker to take up at once.
    RELEASED = "released"
    #: Taken over, ended or expired while we ran it: our result was refused.
    LOST = "lost"
    #: Redis trouble: still pending, to be taken up again.
    LEFT = "left pending"
