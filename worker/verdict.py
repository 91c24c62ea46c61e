"""What becomes of a job after an attempt: it ends, or it gets another one. Nothing else."""

from __future__ import annotations

import asyncio
import math
from typing import Any, NamedTuple

from common import codec
from common.contracts.jobs import TTL_MAX_S, CancelStage, DataField, ErrorKind, Status, Step
from common.store import Ending
from worker import terms
from worker.context import JobContext
from worker.errors import InvalidResult, JobError, NotNow, TransientError
from worker.terms import Budget, HandlerTerms, Wishes, WorkerTerms

_DONE, _DONE_STEP = Status.DONE.value, Step.WORKER_DONE.value
_ERROR, _ERROR_STEP = Status.ERROR.value, Step.WORKER_ERROR.value
_MS = DataField.MS.value
_CANCELED, _CANCEL_STEP = Status.CANCELED.value, Step.WORKER_CANCEL.value

#: Longer error messages are cut: they travel in events and answers.
MAX_ERROR_CHARS = 2000
#: Seconds before a job is tried again that could not be done just now, unless its handler says.
SHORTEST_NOT_NOW_S = 0.1
LONGEST_NOT_NOW_S = 60.0
#: Errors of the outside world that often pass. (Before Python 3.11 asyncio has its own.)
TRANSIENT = (TransientError, ConnectionError, TimeoutError, asyncio.TimeoutError)


class Retry(NamedTuple):
    """The job gets another attempt after a while."""

    delay_ms: int
    error: bytes
    data: bytes
    #: Whether the attempt does not count.
    free: bool = False


Verdict = Ending | Retry


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
    budget_s: float | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure behind an exception of the handler."""
        transient = isinstance(error, TRANSIENT)
        if isinstance(error, JobError):
            return cls(
                error.kind,
                _text_of(error),
                transient,
                permanent=error.permanent,
                free=isinstance(error, NotNow),
                retry_after_s=_seconds(getattr(error, "retry_after_s", None)),
            )
        return cls(type(error).__name__, _text_of(error), transient)

    @classmethod
    def timed_out(cls, budget: Budget) -> Failure:
        """The attempt took longer than it may."""
        seconds = budget.seconds or 0.0
        message = f"ran longer than {seconds:g} s, which is {budget.named}"
        return cls(ErrorKind.TIMEOUT.value, message, budget_s=seconds)


def done(context: JobContext, value: Any) -> Ending:
    """The handler returned: its value is the result."""
    ms = value.get(_MS) if isinstance(value, dict) else None
    data = codec.dumps({_MS: ms if isinstance(ms, int) else context.elapsed_ms})
    return Ending(_DONE, _DONE_STEP, data, result=encoded(value))


def canceled(context: JobContext, stage: CancelStage, value: Any = None) -> Ending:
    """The job was canceled; what the handler still returned is kept."""
    data = codec.dumps(
        {
            DataField.ATTEMPT.value: context.attempt,
            DataField.STAGE.value: stage.value,
            _MS: context.elapsed_ms,
        }
    )
    try:
        result = b"" if value is None else encoded(value)
    except InvalidResult:
        result = b""
    return Ending(_CANCELED, _CANCEL_STEP, data, result=result)


def failed(
    context: JobContext,
    failure: Failure,
    wishes: Wishes,
    handler: HandlerTerms,
    worker: WorkerTerms,
) -> Verdict:
    """The attempt failed: whether the job gets another one, and when."""
    message = failure.message[:MAX_ERROR_CHARS].encode(errors="replace").decode()
    error: dict[str, object] = {
        DataField.KIND.value: failure.kind,
        DataField.MESSAGE.value: message,
        DataField.ATTEMPT.value: context.attempt,
    }
    if failure.budget_s is not None:
        error[DataField.BUDGET_S.value] = failure.budget_s
    asked_for = terms.explicit_attempts(wishes, handler)
    most = worker.max_attempts if asked_for is None else asked_for
    used = context.attempt - wishes.released
    wanted = failure.transient or (asked_for is not None and not failure.permanent)
    if not failure.free and (not wanted or used >= most):
        data = codec.dumps({**error, _MS: context.elapsed_ms})
        dead = not failure.permanent
        return Ending(_ERROR, _ERROR_STEP, data, error=codec.dumps(error), dead=dead)
    backoff = terms.backoff(wishes, handler, worker)
    if failure.retry_after_s is not None:
        delay_s = min(max(failure.retry_after_s, 0.0), TTL_MAX_S)
    elif failure.free:
        delay_s = min(backoff.delay_s(wishes.released + 1), LONGEST_NOT_NOW_S)
    else:
        delay_s = backoff.delay_s(used)
    if failure.free:  # nothing else would end a quick succession
        delay_s = max(delay_s, SHORTEST_NOT_NOW_S)
    delay_ms = round(delay_s * 1000)
    event = {
        **error,
        DataField.DELAY_MS.value: delay_ms,
        DataField.MAX_ATTEMPTS.value: most,
        _MS: context.elapsed_ms,
    }
    return Retry(delay_ms, codec.dumps(error), codec.dumps(event), failure.free)


def encoded(value: object) -> bytes:
    """A handler's result as JSON; raises InvalidResult."""
    try:
        return codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResult(f"the handler returned no JSON value: {error}") from None


def _seconds(value: object) -> float | None:
    """A wait that somebody asked for, straight from a header perhaps; None for what is none."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of its own making
        return "(its text cannot be shown)"
