"""Errors of tool calls by cause."""

from __future__ import annotations

from sluice.common.contracts.models import ToolErrorKind
from sluice.worker.errors import JobError, TransientError


class UnknownTool(JobError):
    """There is no such tool, or the caller may not use it; the error does not name which."""

    kind = ToolErrorKind.UNKNOWN


class InvalidArguments(JobError):
    """The arguments do not match the tool's schema; the message gives the location."""

    kind = ToolErrorKind.ARGUMENTS


class ToolTimeout(JobError):
    """The tool took too long. Its effect until then is unknown."""

    kind = ToolErrorKind.TIMEOUT

    def __init__(self, message: str, *, repeatable: bool) -> None:
        super().__init__(message)
        self.permanent = not repeatable


class ToolFailed(JobError):
    """The tool raised an error; retried if the job has attempts left."""

    kind = ToolErrorKind.FAILED
    permanent = False


class UnusableOutput(ToolFailed):
    """The tool ran but its output is not JSON; it is not retried."""

    permanent = True


class ToolUnavailable(TransientError):
    """The tool's server is unavailable."""

    kind = ToolErrorKind.UNAVAILABLE


class OutcomeUnknown(JobError):
    """A worker died during this call, and the tool must not be called twice."""

    kind = ToolErrorKind.OUTCOME_UNKNOWN


class CallCanceled(Exception):
    """The job was canceled during the call."""
