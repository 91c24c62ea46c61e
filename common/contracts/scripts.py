"""Names of the atomic operations in `common/lua` and of their answers."""

from __future__ import annotations

from enum import Enum
from typing import Final

#: Stands where NEXT is told how often a task may be begun: not at all, only read.
LEAVE_ALONE: Final = "leave_alone"


class Operation(str, Enum):
    """One state change of a job, or of the queue."""

    ENQUEUE = "enqueue"
    SETTLE = "settle"
    BEGIN = "begin"
    NEXT = "next"
    RENEW = "renew"
    EMIT = "emit"
    SAVE = "save"
    FINISH = "finish"
    RETRY = "retry"
    RELEASE = "release"
    CANCEL = "cancel"
    PROMOTE = "promote"
    DEAD = "dead"
    REDRIVE = "redrive"
    TRIM = "trim"
    TAKE = "take"
    KEEP = "keep"
    FORGET = "forget"


class Answer(str, Enum):
    """What an operation found or did."""

    CREATED = "created"
    REPLAYED = "replayed"
    CONFLICT = "conflict"
    FULL = "full"
    RATE = "rate"
    QUOTA = "quota"
    RUN = "run"
    TERMINAL = "terminal"
    EXHAUSTED = "exhausted"
    BUSY = "busy"
    WAIT = "wait"
    LIMITED = "limited"
    CANCELING = "canceling"
    CANCELED = "canceled"
    EXPIRED = "expired"
    MISSING = "missing"
    OK = "ok"
    ALREADY = "already"
    LOST = "lost"
    GONE = "gone"
    FAILED = "failed"
