"""BullMQ jobs: parsing of the job hash and its options, and the handler lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.bullmq import BullCallOpt, BullField, BullOpt
from sluice.common.contracts.jobs import TTL_MAX_S
from sluice.common.features.bullmq.job import has_tenant_mark
from sluice.common.jobs.options import Backoff, JobOptions, parse_permissions
from sluice.common.jobs.store import Lease
from sluice.worker.errors import InvalidPayload, JobError, UnknownTask
from sluice.worker.execution.outcome import RequestOptions
from sluice.worker.queue.claim import ClaimedJob
from sluice.worker.registry import Handler, Registry

#: Which ended jobs of a queue are kept: `count`, `age` and `limit`, as the scripts expect them.
RetentionRule = Mapping[str, Any]

#: Lines kept of a job's log if its options do not set a number.
MOST_LOG_LINES: Final = 1000
_COUNT: Final = BullCallOpt.KEEP_COUNT
_NO_WAIT: Final = Backoff(0.0, 1.0, 0.0, 0.0)
_NAME, _DATA, _OPTS, _MADE = (
    field.encode() for field in (BullField.NAME, BullField.DATA, BullField.OPTS, BullField.MADE)
)
_TIMESTAMP = BullField.TIMESTAMP.encode()
_PRIORITY, _STACKTRACE = BullField.PRIORITY.encode(), BullField.STACKTRACE.encode()
_DEFERRED = BullField.DEFERRED_FAILURE.encode()
_SCHEDULER = BullField.SCHEDULER.encode()


@dataclass(frozen=True, slots=True)
class BullMQOptions:
    """The parts of a job's `opts` that concern the worker."""

    #: As stored: 0 and 1 both mean one attempt.
    attempts: int
    delay_ms: int
    keep_completed: RetentionRule | None
    keep_failed: RetentionRule | None
    lifo: bool
    log_lines: int
    #: Stack traces to keep; None if the job does not set a number.
    stack_limit: int | None
    request: RequestOptions


@dataclass(slots=True)
class LockedJob:
    """A job that this worker has locked."""

    id: str
    token: str
    name: str
    data: bytes
    opts: bytes
    options: BullMQOptions
    #: Attempts before this one.
    attempts_made: int
    #: When the job became due, Unix milliseconds.
    due_ms: int
    priority: int
    #: Stack traces of earlier attempts, as JSON.
    stacktrace: bytes
    #: Reason for which the job must fail without being run; empty if it need not.
    deferred_failure: str
    #: Id of the scheduler that created the job; empty if there is none.
    scheduler: str
    #: The traceback of this attempt, once it has failed.
    fault: str = ""
    #: True if attempts of the job have saved steps.
    has_steps: bool = False

    @classmethod
    def from_hash(cls, pairs: list[bytes], job_id: str, token: str) -> LockedJob:
        """Parse a reply of HGETALL. Invalid fields become neutral values."""
        fields = dict(zip(pairs[::2], pairs[1::2]))
        opts = fields.get(_OPTS, b"{}")
        options = parse_options(opts, has_tenant_mark(job_id))
        number, text = codec.parse_int, codec.decode_text
        return cls(
            job_id,
            token,
            text(fields.get(_NAME, b"")),
            fields.get(_DATA, b"null"),
            opts,
            options,
            number(fields.get(_MADE, b"0")),
            number(fields.get(_TIMESTAMP, b"0")) + options.delay_ms,
            number(fields.get(_PRIORITY, b"0")),
            fields.get(_STACKTRACE, b""),
            text(fields.get(_DEFERRED, b"")),
            text(fields.get(_SCHEDULER, b"")),
        )

    @property
    def claimed_job(self) -> ClaimedJob:
        """The attempt for the executor. A new lease at each call."""
        lease = Lease(self.id, f"{self.due_ms}-0", self.attempts_made + 1, self.token)
        return ClaimedJob(lease, self.name, self.name, self.data, self.options.request)


@lru_cache(maxsize=512)
def parse_options(opts: bytes, is_marked: bool = False) -> BullMQOptions:
    """Parse `opts`. Cached, because most jobs of a queue have the same options.

    `is_marked`: the job's id has the mark of a tenant. The gateway names the tenant of each such
    job; without that, the job is treated as that of an unknown tenant.
    """
    try:
        given = codec.loads_node(opts)
    except ValueError:
        given = None
    given = given if isinstance(given, dict) else {}
    rights = given.get(BullOpt.SLUICE, None if is_marked else {})
    attempts = _non_negative(given.get(BullOpt.ATTEMPTS)) or 0
    lines = _non_negative(given.get(BullOpt.KEEP_LOGS))
    traceparent = _traceparent(given.get(BullOpt.TELEMETRY))
    tenant, tools = parse_permissions(rights)
    options = JobOptions(
        backoff=parse_backoff(given), traceparent=traceparent, tenant=tenant, tools=tools
    )
    return BullMQOptions(
        attempts,
        _non_negative(given.get(BullOpt.DELAY)) or 0,
        _parse_retention(given.get(BullOpt.REMOVE_ON_COMPLETE)),
        _parse_retention(given.get(BullOpt.REMOVE_ON_FAIL)),
        bool(given.get(BullOpt.LIFO)),
        MOST_LOG_LINES if lines is None else lines,
        _non_negative(given.get(BullOpt.STACK_LIMIT)),
        RequestOptions(max(attempts, 1), 0, options),
    )


def parse_backoff(given: Mapping[str, Any]) -> Backoff:
    """Delay between attempts; no delay if the job does not set it."""
    backoff = given.get(BullOpt.BACKOFF)
    if isinstance(backoff, (int, float)) and not isinstance(backoff, bool):
        backoff = {BullOpt.DELAY: backoff}
    if not isinstance(backoff, dict):
        return _NO_WAIT
    delay, jitter = backoff.get(BullOpt.DELAY), backoff.get(BullOpt.JITTER)
    first_s = min(max(_number(delay), 0.0) / 1000, TTL_MAX_S)
    factor = 2.0 if backoff.get(BullOpt.BACKOFF_TYPE) == BullOpt.EXPONENTIAL else 1.0
    return Backoff(first_s, factor, TTL_MAX_S, min(max(_number(jitter), 0.0), 1.0))


def _parse_retention(value: object) -> RetentionRule | None:
    """None if the job does not set it."""
    if value is None:
        return None
    if isinstance(value, dict):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {_COUNT: int(value)}
    return {_COUNT: 0 if value else -1}


def _non_negative(value: object) -> int | None:
    number = _number(value, -1.0)
    return int(number) if number >= 0 else None


def _number(value: object, default: float = 0.0) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    return default


def _traceparent(value: object) -> str | None:
    """Parse the trace context that BullMQ's telemetry stores in the options, as a JSON string."""
    try:
        carrier = codec.loads(value.encode()) if isinstance(value, str) else None
    except ValueError:
        return None
    found = carrier.get("traceparent") if isinstance(carrier, dict) else None
    return found if isinstance(found, str) else None


class DeferredFailure(JobError):
    """BullMQ marked the job as failed before it ran: it stalled too often, or a child failed."""

    kind = "deferred_failure"


class BullMQHandlers:
    """Finds the handler of a job name, after applying BULLMQ_NAME_MAP."""

    def __init__(
        self,
        registry: Registry,
        names: Mapping[str, str],
        job_of: Callable[[str], LockedJob | None],
    ) -> None:
        self._registry = registry
        self._names = names
        self._job_of = job_of

    def resolve_job(self, attempt: ClaimedJob) -> tuple[Handler, Any]:
        """The handler of an attempt and its data; raises JobError if the job cannot run."""
        job = self._job_of(attempt.lease.job_id)
        if job is not None and job.deferred_failure:
            raise DeferredFailure(job.deferred_failure)
        handler = self._registry.by_name(self._names.get(attempt.task, attempt.task))
        if handler is None:
            raise UnknownTask(f"no handler for job name {attempt.task!r}")
        try:
            return handler, codec.loads_node(attempt.payload)
        except ValueError as error:
            raise InvalidPayload(f"the job's data is not valid JSON: {error}") from None
