"""What becomes of a job after an attempt: it ends, or it gets another one. Nothing else."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from common import codec
from common.contracts.jobs import TTL_MAX_S, CancelStage, DataField, ErrorKind, Status, Step
from common.jobs.options import NO_OPTIONS, Backoff, JobOptions
from common.jobs.store import JobOutcome
from worker.errors import InvalidResult, JobError, NotNow, TransientError
from worker.execution.context import JobContext

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings


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


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What holds where neither request nor handler say otherwise."""

    max_attempts: int = 5
    #: Seconds an attempt may run; None for no limit.
    timeout_s: float | None = None
    backoff: Backoff = field(default_factory=Backoff)
    #: Seconds between asking a handler to stop and stopping it.
    cancel_grace_s: float = 1.0

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> WorkerDefaults:
        return cls(
            settings.max_attempts,
            settings.job_timeout_s or None,
            Backoff(settings.retry_backoff_s, max_s=settings.retry_backoff_max_s),
            settings.cancel_grace_s,
        )


@dataclass(frozen=True, slots=True)
class HandlerOptions:
    """What a handler says of itself; None where it says nothing."""

    timeout_s: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 < self.timeout_s <= TTL_MAX_S:
            raise ValueError(
                f"timeout_s is {self.timeout_s}; it must be more than 0 and at most {TTL_MAX_S} s"
            )
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; it must be 1 or more")


class RequestOptions(NamedTuple):
    """What the request said, and how often the job was handed back unharmed."""

    max_attempts: int | None = None
    released: int = 0
    options: JobOptions = NO_OPTIONS


class Timeout(NamedTuple):
    """How long an attempt may run, and who said so."""

    seconds: float | None
    source: str


NO_HANDLER_OPTIONS = HandlerOptions()
NO_REQUEST_OPTIONS = RequestOptions()


def choose_timeout(
    request: RequestOptions, handler_options: HandlerOptions, defaults: WorkerDefaults
) -> Timeout:
    if request.options.timeout_s is not None:
        return Timeout(request.options.timeout_s, "the request's timeout_s")
    if handler_options.timeout_s is not None:
        return Timeout(handler_options.timeout_s, "the handler's timeout_s")
    return Timeout(defaults.timeout_s, "JOB_TIMEOUT_S")


def requested_attempts(request: RequestOptions, handler_options: HandlerOptions) -> int | None:
    """How many attempts somebody asked for; None where nobody did."""
    return handler_options.max_attempts if request.max_attempts is None else request.max_attempts


def choose_backoff(
    request: RequestOptions, handler_options: HandlerOptions, defaults: WorkerDefaults
) -> Backoff:
    """How long to wait between attempts."""
    return request.options.backoff or handler_options.backoff or defaults.backoff


_DONE, _DONE_STEP = Status.DONE.value, Step.WORKER_DONE
_ERROR, _ERROR_STEP = Status.ERROR.value, Step.WORKER_ERROR
_MS = DataField.MS
_CANCELED, _CANCEL_STEP = Status.CANCELED.value, Step.WORKER_CANCEL

#: Longer error messages are cut: they travel in events and answers.
MAX_ERROR_CHARS = 2000
#: Seconds before a job is tried again that could not be done just now, unless its handler says.
SHORTEST_NOT_NOW_S = 0.1
LONGEST_NOT_NOW_S = 60.0
#: Errors of the outside world that often pass. (Before Python 3.11 asyncio has its own.)
TRANSIENT_EXCEPTIONS = (TransientError, ConnectionError, TimeoutError, asyncio.TimeoutError)


class Retry(NamedTuple):
    """The job gets another attempt after a while."""

    delay_ms: int
    error: bytes
    data: bytes
    #: Whether the attempt does not count.
    free: bool = False


AttemptDecision = JobOutcome | Retry


class Failure(NamedTuple):
    """Why an attempt came to nothing."""

    kind: str
    message: str
    #: May pass by itself: worth another attempt even if nobody asked for one.
    transient: bool = False
    #: Will not pass: not worth another attempt even if somebody asked for one.
    permanent: bool = False
    #: No fault of the job's: tried again for as long as it takes, and not counted.
    free: bool = False
    retry_after_s: float | None = None
    timeout_s: float | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> Failure:
        """The failure behind an exception of the handler."""
        transient = isinstance(error, TRANSIENT_EXCEPTIONS)
        if isinstance(error, JobError):
            return cls(
                error.kind,
                _error_text(error),
                transient,
                permanent=error.permanent,
                free=isinstance(error, NotNow),
                retry_after_s=_parse_seconds(getattr(error, "retry_after_s", None)),
            )
        return cls(type(error).__name__, _error_text(error), transient)

    @classmethod
    def from_timeout(cls, timeout: Timeout) -> Failure:
        """The attempt took longer than it may."""
        seconds = timeout.seconds or 0.0
        message = f"ran longer than {seconds:g} s, which is {timeout.source}"
        return cls(ErrorKind.TIMEOUT, message, timeout_s=seconds)


def finish_done(context: JobContext, value: Any) -> JobOutcome:
    """The handler returned: its value is the result."""
    ms = value.get(_MS) if isinstance(value, dict) else None
    data = codec.dumps({_MS: ms if isinstance(ms, int) else context.elapsed_ms})
    return JobOutcome(_DONE, _DONE_STEP, data, result=encode_result(value))


def finish_canceled(context: JobContext, stage: CancelStage, value: Any = None) -> JobOutcome:
    """The job was canceled; what the handler still returned is kept."""
    data = codec.dumps(
        {
            DataField.ATTEMPT: context.attempt,
            DataField.STAGE: stage.value,
            _MS: context.elapsed_ms,
        }
    )
    try:
        result = b"" if value is None else encode_result(value)
    except InvalidResult:
        result = b""
    return JobOutcome(_CANCELED, _CANCEL_STEP, data, result=result)


def decide_failure(
    context: JobContext,
    failure: Failure,
    request: RequestOptions,
    handler_options: HandlerOptions,
    defaults: WorkerDefaults,
) -> AttemptDecision:
    """The attempt failed: whether the job gets another one, and when."""
    message = failure.message[:MAX_ERROR_CHARS].encode(errors="replace").decode()
    error: dict[str, object] = {
        DataField.KIND: failure.kind,
        DataField.MESSAGE: message,
        DataField.ATTEMPT: context.attempt,
    }
    if failure.timeout_s is not None:
        error[DataField.BUDGET_S] = failure.timeout_s
    asked_for = requested_attempts(request, handler_options)
    most = defaults.max_attempts if asked_for is None else asked_for
    used = context.attempt - request.released
    wanted = failure.transient or (asked_for is not None and not failure.permanent)
    if not failure.free and (not wanted or used >= most):
        data = codec.dumps({**error, _MS: context.elapsed_ms})
        dead = not failure.permanent
        return JobOutcome(_ERROR, _ERROR_STEP, data, error=codec.dumps(error), dead_letter=dead)
    backoff = choose_backoff(request, handler_options, defaults)
    if failure.retry_after_s is not None:
        delay_s = min(max(failure.retry_after_s, 0.0), TTL_MAX_S)
    elif failure.free:
        delay_s = min(backoff.delay_s(request.released + 1), LONGEST_NOT_NOW_S)
    else:
        delay_s = backoff.delay_s(used)
    if failure.free:  # nothing else would end a quick succession
        delay_s = max(delay_s, SHORTEST_NOT_NOW_S)
    delay_ms = round(delay_s * 1000)
    event = {
        **error,
        DataField.DELAY_MS: delay_ms,
        DataField.MAX_ATTEMPTS: most,
        _MS: context.elapsed_ms,
    }
    return Retry(delay_ms, codec.dumps(error), codec.dumps(event), failure.free)


def encode_result(value: object) -> bytes:
    """A handler's result as JSON; raises InvalidResult."""
    try:
        return codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResult(f"the handler returned no JSON value: {error}") from None


def _parse_seconds(value: object) -> float | None:
    """A wait that somebody asked for, straight from a header perhaps; None for what is none."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def _error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of its own making
        return "(its text cannot be shown)"
