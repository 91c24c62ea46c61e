"""Names of the BullMQ protocol that Sluice uses directly. No logic.

Keys and fields used only by the scripts of the package are not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFAULT_PREFIX: Final = "bull"
#: The PyPI package and release whose Lua scripts are used.
PACKAGE: Final = "bullmq"
PACKAGE_VERSION: Final = "3.4.4"
#: `step` of BullMQ events in the gateway's SSE frames; the events themselves have none.
EVENTS_STEP: Final = "bullmq.events"


class BullField:
    """Fields of a job hash that Sluice reads."""

    NAME: Final = "name"
    DATA: Final = "data"
    OPTS: Final = "opts"
    TIMESTAMP: Final = "timestamp"
    DELAY: Final = "delay"
    PRIORITY: Final = "priority"
    PROGRESS: Final = "progress"
    RETURN_VALUE: Final = "returnvalue"
    FAILED_REASON: Final = "failedReason"
    STACKTRACE: Final = "stacktrace"
    PROCESSED_ON: Final = "processedOn"
    FINISHED_ON: Final = "finishedOn"
    #: Attempts started, attempts made, number of stalls.
    STARTED: Final = "ats"
    MADE: Final = "atm"
    STALLED: Final = "stc"
    #: The worker that has it, or had it last.
    PROCESSED_BY: Final = "pb"
    #: Why the next worker must fail the job without running it.
    DEFERRED_FAILURE: Final = "defa"
    #: The scheduler that created it.
    SCHEDULER: Final = "rjk"
    PARENT_KEY: Final = "parentKey"


class BullState(str, Enum):
    """State of a job, as Node's `getState` returns it."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class BullEvent:
    """Event types that Sluice distinguishes or adds."""

    ADDED: Final = "added"
    WAITING: Final = "waiting"
    ACTIVE: Final = "active"
    DELAYED: Final = "delayed"
    PROGRESS: Final = "progress"
    COMPLETED: Final = "completed"
    FAILED: Final = "failed"
    STALLED: Final = "stalled"
    REMOVED: Final = "removed"
    #: Added by Sluice, in addition to BullMQ's own `delayed` or `waiting`.
    RETRY: Final = "retry"


class BullEventField:
    """Fields of an event."""

    EVENT: Final = "event"
    JOB_ID: Final = "jobId"
    DELAY: Final = "delay"
    DATA: Final = "data"
    RETURN_VALUE: Final = "returnvalue"
    FAILED_REASON: Final = "failedReason"


class BullOpt:
    """Members of a job's `opts` that a worker uses, as stored."""

    ATTEMPTS: Final = "attempts"
    BACKOFF: Final = "backoff"
    #: Members of a backoff; its `delay` has the same name as that of a job.
    BACKOFF_TYPE: Final = "type"
    EXPONENTIAL: Final = "exponential"
    JITTER: Final = "jitter"
    DELAY: Final = "delay"
    LIFO: Final = "lifo"
    REMOVE_ON_COMPLETE: Final = "removeOnComplete"
    REMOVE_ON_FAIL: Final = "removeOnFail"
    KEEP_LOGS: Final = "kl"
    STACK_LIMIT: Final = "stackTraceLimit"
    #: Trace context of the producer, JSON in a string.
    TELEMETRY: Final = "tm"
    #: For jobs of a scheduler: how they repeat, and when this one was due.
    REPEAT: Final = "repeat"
    PREVIOUS_MS: Final = "prevMillis"
    REPEAT_KEY: Final = "repeatJobKey"
    JOB_ID: Final = "jobId"
    TIMESTAMP: Final = "timestamp"
    #: Added by Sluice's gateway: tenant and tools of the caller, with the members of `Option`.
    #: BullMQ passes it on unchanged. Clients of the gateway cannot set it.
    SLUICE: Final = "sluice"


class BullCallOpt:
    """Members of the packed options of the scripts that lock and end jobs."""

    TOKEN: Final = "token"
    LOCK_MS: Final = "lockDuration"
    WORKER: Final = "name"
    LIMITER: Final = "limiter"
    LIMITER_MAX: Final = "max"
    LIMITER_MS: Final = "duration"
    KEEP: Final = "keepJobs"
    KEEP_COUNT: Final = "count"
    ATTEMPTS: Final = "attempts"
    METRICS: Final = "maxMetricsSize"


class BullRepeat:
    """Members of `repeat` that Sluice reads or increments."""

    EVERY: Final = "every"
    PATTERN: Final = "pattern"
    LIMIT: Final = "limit"
    COUNT: Final = "count"
    OFFSET: Final = "offset"
    END_DATE: Final = "endDate"
    START_DATE: Final = "startDate"
    IMMEDIATELY: Final = "immediately"


class BullAnswer(str, Enum):
    """Answers of Sluice's scripts that wrap those of the package."""

    CREATED = "created"
    REPLAYED = "replayed"
    CONFLICT = "conflict"
    #: A job with the requested id exists; another one took its place.
    DUPLICATE = "duplicate"
    DEDUPLICATED = "deduplicated"
    FULL = "full"
    FAILED = "failed"
    FOUND = "found"
    MISSING = "missing"
    REMOVED = "removed"
    CANCELING = "canceling"
    #: The next job of a scheduler; a job with a running child.
    SCHEDULED = "scheduled"
    LOCKED = "locked"


@dataclass(frozen=True)
class BullKeys:
    """Keys of one queue. Braces in a queue name are part of it: never added, never removed."""

    queue: str
    prefix: str = DEFAULT_PREFIX

    def key(self, part: str) -> str:
        """Any key of the queue: `wait`, `active`, a job id."""
        return f"{self.prefix}:{self.queue}:{part}"

    def job(self, job_id: str) -> str:
        return self.key(job_id)

    def lock(self, job_id: str) -> str:
        """STRING, the token of the worker that runs a job."""
        return self.key(f"{job_id}:lock")

    def cancel(self, job_id: str) -> str:
        """STRING, added by Sluice: the cancel request of a running job."""
        return self.key(f"{job_id}:cancel")

    def logs(self, job_id: str) -> str:
        """LIST, log lines of a job."""
        return self.key(f"{job_id}:logs")

    def processed(self, job_id: str) -> str:
        """HASH, results of a job's children."""
        return self.key(f"{job_id}:processed")

    def steps(self, job_id: str) -> str:
        """HASH, added by Sluice: checkpoints of a job."""
        return self.key(f"{job_id}:steps")

    def idempotency(self, job_id: str) -> str:
        """STRING, added by Sluice: request and job of an Idempotency-Key."""
        return self.key(f"{job_id}:idempotency")

    def deduplication(self, deduplication_id: str) -> str:
        """STRING, the job that represents others with the same deduplication id."""
        return self.key(f"de:{deduplication_id}")

    @property
    def marker(self) -> str:
        """ZSET, markers that wake workers up, by time."""
        return self.key("marker")

    @property
    def events(self) -> str:
        return self.key("events")

    @property
    def meta(self) -> str:
        """HASH, settings of the queue."""
        return self.key("meta")

    @property
    def control(self) -> str:
        """CHANNEL, added by Sluice: ids of jobs to cancel."""
        return self.key("control")
