"""The client's errors by cause, and the exit codes of the commands that they end."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluice.api.jobs import Job


class ExitCode(IntEnum):
    """Exit codes of all commands; docs/cli.md has the same table."""

    OK = 0
    #: A job failed, or a check found something wrong.
    FAILED = 1
    #: Wrong use of the command.
    USAGE = 2
    #: The job was canceled.
    CANCELED = 3
    #: No API key, an invalid one, or one without the permission.
    AUTH = 4
    #: No gateway answers, or its Redis is unavailable.
    UNREACHABLE = 5
    #: The time limit passed first.
    TIMEOUT = 6
    #: The gateway accepts no more work at the moment.
    BACKPRESSURE = 7
    #: A workflow waits for a decision.
    INPUT_REQUIRED = 8
    #: No such job, dead letter, workflow, image or document (EX_NOINPUT).
    NOT_FOUND = 66
    #: Output could not be written, or a file could not be read (EX_IOERR).
    IO_ERROR = 74
    #: The URL or a setting is invalid (EX_CONFIG).
    MISCONFIGURED = 78
    #: Ctrl-C.
    INTERRUPTED = 130
    #: The reader of stdout closed the pipe.
    BROKEN_PIPE = 141


class SluiceError(Exception):
    """The root of all errors; the message says what happened and what to do."""

    exit_code = ExitCode.FAILED
    #: Whether the same request may succeed a little later.
    transient = False
    #: Whether the gateway may have processed the request although no response came.
    outcome_unknown = False
    #: The gateway's Retry-After, if it sent one.
    retry_after_s: float | None = None


class Misconfigured(SluiceError):
    """The URL or the API key is invalid."""

    exit_code = ExitCode.MISCONFIGURED


class Unreachable(SluiceError):
    """No gateway answers."""

    exit_code = ExitCode.UNREACHABLE
    transient = True


class Broken(Unreachable):
    """The connection broke or timed out; the gateway may have processed the request."""

    outcome_unknown = True


class BadAnswer(SluiceError):
    """The response is not one of a Sluice gateway, or of one that is too new."""

    exit_code = ExitCode.UNREACHABLE


class Refused(SluiceError):
    """The gateway answered with an error. A refused request has changed nothing."""

    def __init__(
        self,
        message: str,
        status: int,
        code: str = "",
        detail: str = "",
        problem: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        #: The contract's code, such as `queue_full`; empty where the response has none.
        self.code = code
        self.detail = detail
        #: The whole response body, if it was a JSON object.
        self.problem: Mapping[str, Any] = problem or {}
        self.retry_after_s = retry_after_s


class Invalid(Refused):
    """The request itself is wrong (400, 405, 413, 415, 422 …)."""

    exit_code = ExitCode.USAGE


class NotAllowed(Refused):
    """No API key, an invalid one, or one without the permission (401, 403)."""

    exit_code = ExitCode.AUTH


class NotFound(Refused):
    """Unknown, expired, or of another tenant (404, 410)."""

    exit_code = ExitCode.NOT_FOUND


class Conflict(Refused):
    """The request does not fit the current state (409)."""


class InProgress(Conflict):
    """The same request was sent before and is still being processed."""

    transient = True


class RateLimited(Refused):
    """A rate limit, a quota, a full queue or an overloaded host (429, some 503)."""

    exit_code = ExitCode.BACKPRESSURE
    transient = True


class Unavailable(Refused):
    """The gateway, or something behind it, is unavailable for now (502, 503, 504)."""

    exit_code = ExitCode.UNREACHABLE
    transient = True


class WaitTimeout(SluiceError):
    """The job has not ended within the timeout. It goes on all the same."""

    exit_code = ExitCode.TIMEOUT


class JobFailed(SluiceError):
    """The job ended in an error; `job.error` has its kind and message."""

    def __init__(self, job: Job) -> None:
        self.job = job
        error = job.error or {}
        self.kind = str(error.get("kind", ""))
        message = str(error.get("message", ""))
        super().__init__(f"job {job.job_id} failed: {self.kind}: {message}")


class JobCanceled(SluiceError):
    """The job was canceled."""

    exit_code = ExitCode.CANCELED

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.job_id} was canceled")
