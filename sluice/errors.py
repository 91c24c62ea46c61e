"""The errors of the client, one class per cause, and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluice.api.jobs import Job


class ExitCode(IntEnum):
    """Exit codes of all commands. docs/cli.md lists the same codes."""

    OK = 0
    #: A job failed, or a check found a problem.
    FAILED = 1
    #: Invalid arguments.
    USAGE = 2
    #: The job was canceled.
    CANCELED = 3
    #: The API key is missing, invalid, or lacks the permission.
    AUTH = 4
    #: No gateway answers, or its Redis is unavailable.
    UNREACHABLE = 5
    #: The time limit expired.
    TIMEOUT = 6
    #: The gateway is overloaded or a limit is reached; try again later.
    BACKPRESSURE = 7
    #: A workflow is waiting for a decision.
    INPUT_REQUIRED = 8
    #: No such job, dead letter, workflow, image or document (EX_NOINPUT).
    NOT_FOUND = 66
    #: Something that the command needs on this machine is missing: a package, a free port, Redis
    #: (EX_UNAVAILABLE).
    UNAVAILABLE = 69
    #: Output could not be written, or a file could not be read (EX_IOERR).
    IO_ERROR = 74
    #: The URL or a setting is invalid (EX_CONFIG).
    MISCONFIGURED = 78
    #: Ctrl-C.
    INTERRUPTED = 130
    #: The reader of stdout closed the pipe.
    BROKEN_PIPE = 141


#: The packages of the gateway and the worker, and of commands that access Redis.
SERVER_EXTRA = "sluice[server]"


class SluiceError(Exception):
    """Base class of all errors. The message states what happened and what to do."""

    exit_code = ExitCode.FAILED
    #: The same request may succeed a little later.
    transient = False
    #: No response arrived, but the gateway may have processed the request.
    outcome_unknown = False
    #: The gateway's Retry-After, if it sent one.
    retry_after_s: float | None = None


class Misconfigured(SluiceError):
    """The URL or the API key is invalid."""

    exit_code = ExitCode.MISCONFIGURED


class MissingRequirement(SluiceError):
    """Something that the command needs on this machine is missing: a package, or a free port."""

    exit_code = ExitCode.UNAVAILABLE


class Unreachable(SluiceError):
    """No gateway answers."""

    exit_code = ExitCode.UNREACHABLE
    transient = True


class Broken(Unreachable):
    """The connection broke or timed out. The gateway may have processed the request."""

    outcome_unknown = True


class BadAnswer(SluiceError):
    """The response is not that of a Sluice gateway, or the gateway is too new for this client."""

    exit_code = ExitCode.UNREACHABLE


class Refused(SluiceError):
    """The gateway answered with an error status. A refused request has changed nothing."""

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
        #: The error code of the contract, such as `queue_full`; empty if the response has none.
        self.code = code
        self.detail = detail
        #: The whole response body, if it was a JSON object.
        self.problem: Mapping[str, Any] = problem or {}
        self.retry_after_s = retry_after_s


class Invalid(Refused):
    """The request is invalid (400, 405, 413, 415, 422 …)."""

    exit_code = ExitCode.USAGE


class NotAllowed(Refused):
    """The API key is missing, invalid, or lacks the permission (401, 403)."""

    exit_code = ExitCode.AUTH


class NotFound(Refused):
    """The object is unknown, has expired, or belongs to another tenant (404, 410)."""

    exit_code = ExitCode.NOT_FOUND


class Conflict(Refused):
    """The request conflicts with the current state of the object (409)."""


class InProgress(Conflict):
    """The same request was sent before and is still being processed."""

    transient = True


class RateLimited(Refused):
    """A rate limit, a quota, a full queue or an overloaded host (429, and 503 for overload)."""

    exit_code = ExitCode.BACKPRESSURE
    transient = True


class Unavailable(Refused):
    """The gateway or its Redis is temporarily unavailable (502, 503, 504)."""

    exit_code = ExitCode.UNREACHABLE
    transient = True


class WaitTimeout(SluiceError):
    """The job did not end within the timeout. It keeps running."""

    exit_code = ExitCode.TIMEOUT


class JobFailed(SluiceError):
    """The job ended with an error. `job.error` holds its kind and message."""

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
