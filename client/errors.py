"""What can go wrong, by cause. Each error knows the exit code of a command that it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.core.models import Job


class SluiceError(Exception):
    """The root of all of them; the message says what happened and what to do."""

    exit_code = Exit.FAILED
    #: Whether the same request may succeed a little later.
    passing = False
    #: Whether the gateway may have done what was asked although no answer came.
    outcome_unknown = False
    #: When the gateway wants to be asked again, where it has said so.
    retry_after_s: float | None = None


class Misconfigured(SluiceError):
    """The URL or the key cannot be one."""

    exit_code = Exit.MISCONFIGURED


class Unreachable(SluiceError):
    """No gateway answers."""

    exit_code = Exit.UNREACHABLE
    passing = True


class Broken(Unreachable):
    """The connection ended before its time: whether the request was heard is not known."""

    outcome_unknown = True


class BadAnswer(SluiceError):
    """What answers is no gateway of Sluice, or one that we do not understand."""

    exit_code = Exit.UNREACHABLE


class Refused(SluiceError):
    """The gateway answered, and said no. A refused request has changed nothing."""

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
        #: The contract's name of it, such as `queue_full`; empty where there is none.
        self.code = code
        self.detail = detail
        #: The whole answer, where it was JSON.
        self.problem: Mapping[str, Any] = problem or {}
        self.retry_after_s = retry_after_s


class Invalid(Refused):
    """The request itself is wrong (400, 405, 413, 415, 422 …)."""

    exit_code = Exit.USAGE


class NotAllowed(Refused):
    """No key, a wrong one, or one that may not do this (401, 403)."""

    exit_code = Exit.AUTH


class NotFound(Refused):
    """Unknown, expired, or somebody else's (404, 410)."""

    exit_code = Exit.MISSING


class Conflict(Refused):
    """It does not fit what is there by now (409)."""


class InProgress(Conflict):
    """The same request, sent before, is still at work."""

    passing = True


class RateLimited(Refused):
    """Too much at once: a rate, a quota, a full queue, a box under pressure (429, some 503)."""

    exit_code = Exit.BACKPRESSURE
    passing = True


class Unavailable(Refused):
    """The gateway, or something behind it, is away for now (502, 503, 504)."""

    exit_code = Exit.UNREACHABLE
    passing = True


class WaitTimeout(SluiceError):
    """It has not ended in the time one was ready to wait. It goes on all the same."""

    exit_code = Exit.TIMEOUT


class JobFailed(SluiceError):
    """The job ended in an error; `job.error` has its kind and message."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.kind = str((job.error or {}).get("kind", ""))
        said = str((job.error or {}).get("message", ""))
        super().__init__(f"job {job.job_id} failed: {self.kind}: {said}")


class JobCanceled(SluiceError):
    """Somebody has canceled the job."""

    exit_code = Exit.CANCELED

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.job_id} was canceled")
