"""What a worker says of itself: members of the JSON in `jobs:stream:worker:{consumer}`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from common.contracts.images import IMAGE_TOOL
from common.contracts.jobs import TASKS


class WorkerField:
    """Members of a heartbeat. A reader ignores what it does not know."""

    CONSUMER: Final = "consumer"
    HOST: Final = "host"
    PID: Final = "pid"
    VERSION: Final = "version"
    #: When the process began, and when it last said something, in milliseconds.
    STARTED_MS: Final = "started_ms"
    SEEN_MS: Final = "seen_ms"
    #: Seconds until the next sign of life.
    EVERY_S: Final = "every_s"
    #: For which tasks it has handlers.
    TASKS: Final = "tasks"
    IN_FLIGHT: Final = "in_flight"
    MAX_INFLIGHT: Final = "max_inflight"
    #: Messages that are its own and wait: for their time, or for a place of their task.
    DEFERRED: Final = "deferred"
    RUNNING: Final = "running"
    DRAINING: Final = "draining"
    #: Takes no new work: the box is short of memory or too hot, or the queue paused; in words.
    HOLDING: Final = "holding"
    HOLDING_WHY: Final = "holding_why"
    #: Of those reasons, whether it is that the queue is paused.
    PAUSED: Final = "paused"
    LOOP_LAG_S: Final = "loop_lag_s"
    RSS_BYTES: Final = "rss_bytes"
    OPEN_FDS: Final = "open_fds"
    CPU_S: Final = "cpu_s"
    BOX: Final = "box"
    QUEUE: Final = "queue"
    TALLY: Final = "tally"
    EVENTS: Final = "events"
    LIMITS: Final = "limits"
    MODEL: Final = "model"
    EMBEDDER: Final = "embedder"
    MCP: Final = "mcp"
    WEBHOOKS: Final = "webhooks"
    IMAGES: Final = "images"
    BULLMQ: Final = "bullmq"


class ModelState(str, Enum):
    """How a worker's model server is: `state` of `model`."""

    READY = "ready"
    #: It is there, and its model is being loaded; jobs wait.
    LOADING = "loading"
    #: It does not answer, or fails at everything; jobs wait.
    DOWN = "down"
    #: None is configured; jobs that need one fail at once.
    ABSENT = "absent"


class RunningField:
    """Members of an entry of `running`: a job that runs now, and since when."""

    JOB_ID: Final = "job_id"
    TASK: Final = "task"
    SINCE_MS: Final = "since_ms"
    ATTEMPT: Final = "attempt"


class LimitsField:
    """Members of `limits`: how many jobs of a task may run at once."""

    #: In this process; and across all workers, where only Redis knows how many run.
    HERE: Final = "here"
    ACROSS: Final = "across"
    #: Tasks that may not begin here just now, and why.
    CLOSED: Final = "closed"
    #: Tasks of which messages wait for a place, wherever there will be one.
    WAITING: Final = "waiting"


class LimitField:
    """Members of an entry of `here` or `across`."""

    NAME: Final = "name"
    PLACES: Final = "places"
    RUNNING: Final = "running"


class WaitingField:
    """Members of an entry of `waiting`."""

    NUMBER: Final = "number"
    #: When the one was queued that has waited for longest; 0 for not known yet.
    OLDEST_MS: Final = "oldest_ms"


class QueueReadingField:
    """Members of `queue`: the queue as this worker saw it."""

    LENGTH: Final = "length"
    WAITING: Final = "waiting"
    PENDING: Final = "pending"
    #: When the oldest message that nobody was given yet was queued; 0 where there is none.
    OLDEST_MS: Final = "oldest_ms"
    #: Longest time that a delivered message has not been heard of.
    IDLE_MS: Final = "idle_ms"
    STREAM_BYTES: Final = "stream_bytes"


class TaskCounter(str, Enum):
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


class TaskHistogram(str, Enum):
    """What a worker measures of each task, as histograms."""

    QUEUE_WAIT = "queue_wait"
    RUN = "run"
    END_TO_END = "end_to_end"
    ATTEMPTS = "attempts"


class HistogramField:
    """Members of a histogram."""

    #: How many lay up to each bound and above the one before; the last has no bound.
    COUNTS: Final = "counts"
    SUM: Final = "sum"


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
HISTOGRAM_BOUNDS: Final = {
    TaskHistogram.QUEUE_WAIT: SECONDS_BOUNDS,
    TaskHistogram.RUN: SECONDS_BOUNDS,
    TaskHistogram.END_TO_END: SECONDS_BOUNDS,
    TaskHistogram.ATTEMPTS: ATTEMPTS_BOUNDS,
}
