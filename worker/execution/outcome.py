"""Decides how an attempt ends: the job finishes, or it gets another attempt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.common import codec
from sluice.common.contracts.jobs import TTL_MAX_S, CancelStage, DataField, ErrorKind, Status, Step
from sluice.common.jobs.options import NO_OPTIONS, Backoff, JobOptions
from sluice.common.jobs.store import JobOutcome
from sluice.worker.errors import InvalidResult, JobError, NotNow, TransientError
from sluice.worker.execution.context import JobContext

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings


class Outcome(Enum):
    """How an attempt ended."""

    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"
    #: The job gets another attempt later.
    RETRY = "retry"
    #: Like RETRY, but the attempt does not count, because the job could not run at the time.
    POSTPONED = "postponed"
    #: Another worker may take the job at once.
    RELEASED = "released"
    #: The job was taken over, ended or expired meanwhile: the result was refused.
    LOST = "lost"
    #: Redis failed: the message is still pending and will be claimed again.
    LEFT = "left pending"


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """Options that apply if neither the request nor the handler sets them."""

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
    """Options of a handler; None if it does not set them."""

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
    """Options of the request, and how many attempts were released without counting."""

    max_attempts: int | None = None
    released: int = 0
    options: JobOptions = NO_OPTIONS


class Timeout(NamedTuple):
    """How long an attempt may run, and where that was set."""

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
    """`max_attempts` of the request or else of the handler; None if neither sets it."""
    return handler_options.max_attempts if request.max_attempts is None else request.max_attempts


def choose_backoff(
    request: RequestOptions, handler_options: HandlerOptions, defaults: WorkerDefaults
) -> Backoff:
    return request.options.backoff or handler_options.backoff or defaults.backoff


_DONE, _DONE_STEP = Status.DONE.value, Step.WORKER_DONE
_ERROR, _ERROR_STEP = Status.ERROR.value, Step.WORKER_ERROR
_MS = DataField.MS
_CANCELED, _CANCEL_STEP = Status.CANCELED.value, Step.WORKER_CANCEL

#: Longer error messages are cut: they are part of events and responses.
MAX_ERROR_CHARS = 2000
#: Bounds of the delay after `NotNow`, in seconds, unless the handler sets the delay.
SHORTEST_NOT_NOW_S = 0.1
LONGEST_NOT_NOW_S = 60.0
#: Exceptions of failures that often pass. (Before Python 3.11 asyncio has its own TimeoutError.)
TRANSIENT_EXCEPTIONS = (TransientError, ConnectionError, TimeoutError, asyncio.TimeoutError)


class Retry(NamedTuple):
    """The job gets another attempt after a delay."""

    delay_ms: int
    error: bytes
    data: bytes
    #: True if the attempt does not count.
    free: bool = False


AttemptDecision = JobOutcome | Retry


class Failure(NamedTuple):
    """Why an attempt failed."""

    kind: str
    message: str
    #: May pass: retried even if neither request nor handler set `max_attempts`.
    transient: bool = False
    #: Does not pass: never retried.
    permanent: bool = False
    #: Not caused by the job: retried without limit, and the attempt does not count.
    free: bool = False
    retry_after_s: float | None = None
    timeout_s: float | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> Failure:
        """The failure for an exception of the handler."""
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
        """The failure of an attempt that ran longer than its timeout."""
        seconds = timeout.seconds or 0.0
        message = f"ran longer than {seconds:g} s, which is {timeout.source}"
        return cls(ErrorKind.TIMEOUT, message, timeout_s=seconds)


def finish_done(
    context: JobContext, value: Any, dumps: Callable[[object], bytes] = codec.dumps
) -> JobOutcome:
    """The handler returned; its value is the result, which `dumps` encodes."""
    ms = value.get(_MS) if isinstance(value, dict) else None
    data = codec.dumps({_MS: ms if isinstance(ms, int) else context.elapsed_ms})
    return JobOutcome(_DONE, _DONE_STEP, data, result=encode_result(value, dumps))


def finish_canceled(context: JobContext, stage: CancelStage, value: Any = None) -> JobOutcome:
    """The job was canceled; a value that the handler still returned is kept."""
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
    """Decide whether and when a failed job gets another attempt."""
    message = failure.message[:MAX_ERROR_CHARS].encode(errors="replace").decode()
    error: dict[str, object] = {
        DataField.KIND: failure.kind,
        DataField.MESSAGE: message,
        DataField.ATTEMPT: context.attempt,
    }
    if failure.timeout_s is not None:
        error[DataField.BUDGET_S] = failure.timeout_s
    requested = requested_attempts(request, handler_options)
    most = defaults.max_attempts if requested is None else requested
    used = context.attempt - request.released
    retryable = failure.transient or (requested is not None and not failure.permanent)
    if not failure.free and (not retryable or used >= most):
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
    if failure.free:  # attempts that do not count are not limited in number
        delay_s = max(delay_s, SHORTEST_NOT_NOW_S)
    delay_ms = round(delay_s * 1000)
    event = {
        **error,
        DataField.DELAY_MS: delay_ms,
        DataField.MAX_ATTEMPTS: most,
        _MS: context.elapsed_ms,
    }
    return Retry(delay_ms, codec.dumps(error), codec.dumps(event), failure.free)


def encode_result(value: object, dumps: Callable[[object], bytes] = codec.dumps) -> bytes:
    """Encode a handler's result as JSON; raises InvalidResult."""
    try:
        return dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResult(
            f"the handler returned a value that is not valid JSON: {error}"
        ) from None


def _parse_seconds(value: object) -> float | None:
    """Parse a delay, perhaps from an HTTP header; None if it is not a finite number."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def _error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # its __str__ raises
        return "(its text cannot be shown)"
