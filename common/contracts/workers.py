"""What a worker says of itself: members of the JSON in `jobs:stream:worker:{consumer}`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from common.contracts.images import IMAGE_TOOL
from common.contracts.jobs import TASKS


class WorkerField(str, Enum):
    """Members of a heartbeat. A reader ignores what it does not know."""

    CONSUMER = "consumer"
    HOST = "host"
    PID = "pid"
    VERSION = "version"
    #: When the process began, and when it last said something, in milliseconds.
    STARTED_MS = "started_ms"
    SEEN_MS = "seen_ms"
    #: Seconds until the next sign of life.
    EVERY_S = "every_s"
    #: For which tasks it has handlers.
    TASKS = "tasks"
    IN_FLIGHT = "in_flight"
    MAX_INFLIGHT = "max_inflight"
    #: Messages that are its own and wait: for their time, or for a place of their task.
    DEFERRED = "deferred"
    RUNNING = "running"
    DRAINING = "draining"
    #: Takes no new work: the box is short of memory or too hot, or the queue paused; in words.
    HOLDING = "holding"
    HOLDING_WHY = "holding_why"
    #: Of those reasons, whether it is that the queue is paused.
    PAUSED = "paused"
    LOOP_LAG_S = "loop_lag_s"
    RSS_BYTES = "rss_bytes"
    OPEN_FDS = "open_fds"
    CPU_S = "cpu_s"
    BOX = "box"
    QUEUE = "queue"
    TALLY = "tally"
    EVENTS = "events"
    LIMITS = "limits"
    MODEL = "model"
    EMBEDDER = "embedder"
    MCP = "mcp"
    WEBHOOKS = "webhooks"
    IMAGES = "images"
    BULLMQ = "bullmq"


class ModelState(str, Enum):
    """How a worker's model server is: `state` of `model`."""

    READY = "ready"
    #: It is there, and its model is being loaded; jobs wait.
    LOADING = "loading"
    #: It does not answer, or fails at everything; jobs wait.
    DOWN = "down"
    #: None is configured; jobs that need one fail at once.
    ABSENT = "absent"


class RunningField(str, Enum):
    """Members of an entry of `running`: a job that runs now, and since when."""

    JOB_ID = "job_id"
    TASK = "task"
    SINCE_MS = "since_ms"
    ATTEMPT = "attempt"


class LimitsField(str, Enum):
    """Members of `limits`: how many jobs of a task may run at once."""

    #: In this process; and across all workers, where only Redis knows how many run.
    HERE = "here"
    ACROSS = "across"
    #: Tasks that may not begin here just now, and why.
    CLOSED = "closed"
    #: Tasks of which messages wait for a place, wherever there will be one.
    WAITING = "waiting"


class LimitField(str, Enum):
    """Members of an entry of `here` or `across`."""

    NAME = "name"
    PLACES = "places"
    RUNNING = "running"


class WaitingField(str, Enum):
    """Members of an entry of `waiting`."""

    NUMBER = "number"
    #: When the one was queued that has waited for longest; 0 for not known yet.
    OLDEST_MS = "oldest_ms"


class QueueReadingField(str, Enum):
    """Members of `queue`: the queue as this worker saw it."""

    LENGTH = "length"
    WAITING = "waiting"
    PENDING = "pending"
    #: When the oldest message that nobody was given yet was queued; 0 where there is none.
    OLDEST_MS = "oldest_ms"
    #: Longest time that a delivered message has not been heard of.
    IDLE_MS = "idle_ms"
    STREAM_BYTES = "stream_bytes"


class Count(str, Enum):
    """What a worker counts of each task since it began."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"
    RETRIED = "retried"
    POSTPONED = "postponed"
    DEADLETTERED = "deadlettered"
    RELEASED = "released"
    RECLAIMED = "reclaimed"


class Spread(str, Enum):
    """What a worker measures of each task, as histograms."""

    QUEUE_WAIT = "queue_wait"
    RUN = "run"
    END_TO_END = "end_to_end"
    ATTEMPTS = "attempts"


class SpreadField(str, Enum):
    """Members of a histogram."""

    #: How many lay up to each bound and above the one before; the last has no bound.
    COUNTS = "counts"
    SUM = "sum"


#: Workers that a gateway looks at; of more, those heard of last.
MOST_WORKERS: Final = 256
#: Running jobs that a heartbeat names.
MOST_NAMED: Final = 32

#: The task under which messages are counted whose task is none of the contract's.
UNKNOWN_TASK: Final = "unknown"
TASK_LABELS: Final = (*TASKS, UNKNOWN_TASK)
#: What messages may wait for a place of: a task, or a tool of ours that has its own places.
WAITING_LABELS: Final = (*TASK_LABELS, IMAGE_TOOL)

#: Upper bounds of the histograms' buckets.
SECONDS_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1800.0,
)  # fmt: skip
FIRST_TOKEN_BOUNDS: Final = (
    0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
ATTEMPTS_BOUNDS: Final = (1.0, 2.0, 3.0, 5.0, 10.0)
BOUNDS: Final = {
    Spread.QUEUE_WAIT: SECONDS_BOUNDS,
    Spread.RUN: SECONDS_BOUNDS,
    Spread.END_TO_END: SECONDS_BOUNDS,
    Spread.ATTEMPTS: ATTEMPTS_BOUNDS,
}
