"""Names of the atomic operations in `common/jobs/lua` and of their answers."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Lane(str, Enum):
    """Priority of a job. Each lane has a stream; that of the normal lane is the queue."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


#: Prefix of tenant lanes (`tenants.0` …), which separate the backlogs of tenants.
TENANT_LANE_PREFIX: Final = "tenants."
TENANT_LANES_MAX: Final = 16
#: All possible lanes except the normal one.
EXTRA_LANES: Final = (
    Lane.HIGH.value,
    Lane.LOW.value,
    *(f"{TENANT_LANE_PREFIX}{number}" for number in range(TENANT_LANES_MAX)),
)


class PauseField:
    """Members of the JSON in the pause key."""

    SINCE_MS: Final = "since_ms"
    BY: Final = "by"
    WHY: Final = "why"


def paused_key(queue: str) -> str:
    """STRING, since when a queue is paused, by whom and why; absent if it is not paused.

    Its name is also the message on the control channel when that changes.
    """
    return f"{queue}:paused"


#: In place of a task's maximum attempts in FETCH_AND_BEGIN: its messages are only read.
DO_NOT_BEGIN: Final = "leave_alone"


class Operation(str, Enum):
    """Atomic state changes of a job or of the queue."""

    ENQUEUE = "enqueue"
    PRUNE_QUOTA = "prune_quota"
    BEGIN = "begin"
    FETCH_AND_BEGIN = "fetch_and_begin"
    RENEW = "renew"
    EMIT = "emit"
    SAVE_CHECKPOINT = "save_checkpoint"
    FINISH = "finish"
    RETRY = "retry"
    RELEASE = "release"
    CANCEL = "cancel"
    PROMOTE = "promote"
    DEAD_LETTER = "dead_letter"
    REDRIVE = "redrive"
    TRIM = "trim"
    TAKE_WAITING = "take_waiting"
    TOUCH_WAITING = "touch_waiting"
    REMOVE_IDLE_CONSUMERS = "remove_idle_consumers"


class Answer(str, Enum):
    """Result of an operation."""

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


class AdmissionAnswer:
    """Answers with which the scripts of features refuse to start a job."""

    FULL: Final = "full"
    RATE: Final = "rate"
    QUOTA: Final = "quota"


class AdmissionFact:
    """The fact that comes with each of these answers, in their order."""

    BACKLOG: Final = "backlog"
    WAIT_MS: Final = "wait_ms"
    ACTIVE: Final = "active"
