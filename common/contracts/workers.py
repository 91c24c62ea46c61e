"""The heartbeat of a worker: members of the JSON in `jobs:stream:worker:{consumer}`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from sluice.common.contracts.images import IMAGE_TOOL
from sluice.common.contracts.jobs import TASKS


class WorkerField:
    """Members of a heartbeat. Readers ignore unknown members."""

    CONSUMER: Final = "consumer"
    HOST: Final = "host"
    PID: Final = "pid"
    VERSION: Final = "version"
    #: When the process started, and when it sent the heartbeat, in Unix milliseconds.
    STARTED_MS: Final = "started_ms"
    SEEN_MS: Final = "seen_ms"
    #: Seconds between two heartbeats.
    EVERY_S: Final = "every_s"
    #: Tasks with a handler.
    TASKS: Final = "tasks"
    IN_FLIGHT: Final = "in_flight"
    MAX_INFLIGHT: Final = "max_inflight"
    #: Messages of this consumer that wait for their time or for a slot of their task.
    DEFERRED: Final = "deferred"
    RUNNING: Final = "running"
    DRAINING: Final = "draining"
    #: Takes no new jobs: the host is short of memory or too hot, or the queue is paused; and why.
    HOLDING: Final = "holding"
    HOLDING_WHY: Final = "holding_why"
    #: Whether the reason is that the queue is paused.
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
    TOOLS: Final = "tools"
    WEBHOOKS: Final = "webhooks"
    IMAGES: Final = "images"
    BULLMQ: Final = "bullmq"


class ModelState(str, Enum):
    """`state` of a worker's model server."""

    READY = "ready"
    #: The server runs and is loading its model; jobs wait.
    LOADING = "loading"
    #: The server does not answer, or every request fails; jobs wait.
    DOWN = "down"
    #: No server is configured; jobs that need one fail at once.
    ABSENT = "absent"


class RunningField:
    """Members of an entry of `running`: a running job."""

    JOB_ID: Final = "job_id"
    TASK: Final = "task"
    SINCE_MS: Final = "since_ms"
    ATTEMPT: Final = "attempt"


class LimitsField:
    """Members of `limits`: concurrency limits of tasks."""

    #: In this process; and across all workers, where only Redis knows how many are running.
    HERE: Final = "here"
    ACROSS: Final = "across"
    #: Tasks that may not start on this worker now, with the reason.
    CLOSED: Final = "closed"
    #: Tasks with messages that are waiting for a slot.
    WAITING: Final = "waiting"


class LimitField:
    """Members of an entry of `here` or `across`."""

    NAME: Final = "name"
    PLACES: Final = "places"
    RUNNING: Final = "running"


class WaitingField:
    """Members of an entry of `waiting`."""

    NUMBER: Final = "number"
    #: When the oldest was queued; 0 if unknown.
    OLDEST_MS: Final = "oldest_ms"


class QueueReadingField:
    """Members of `queue`: the state of the queue as seen by this worker."""

    LENGTH: Final = "length"
    WAITING: Final = "waiting"
    PENDING: Final = "pending"
    #: When the oldest undelivered message was queued; 0 if there is none.
    OLDEST_MS: Final = "oldest_ms"
    #: Longest idle time of a delivered message.
    IDLE_MS: Final = "idle_ms"
    STREAM_BYTES: Final = "stream_bytes"


class TaskCounter(str, Enum):
    """Counters per task since the worker started."""

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
    """Histograms per task since the worker started."""

    QUEUE_WAIT = "queue_wait"
    RUN = "run"
    END_TO_END = "end_to_end"
    ATTEMPTS = "attempts"


class HistogramField:
    """Members of a histogram."""

    #: Number of values per bucket; the last bucket has no upper bound.
    COUNTS: Final = "counts"
    SUM: Final = "sum"


#: Workers that a gateway reads; if there are more, those with the latest heartbeats.
MOST_WORKERS: Final = 256
#: Running jobs listed in a heartbeat.
MOST_NAMED: Final = 32

#: Label of messages with an unknown task.
UNKNOWN_TASK: Final = "unknown"
TASK_LABELS: Final = (*TASKS, UNKNOWN_TASK)
#: What may have a wait queue: a task, or an internal tool with its own slots.
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
