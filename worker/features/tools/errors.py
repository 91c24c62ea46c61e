"""Why a tool gave no output, by cause."""

from __future__ import annotations

from common.contracts.models import ToolErrorKind
from worker.errors import JobError, TransientError


class UnknownTool(JobError):
    """There is no such tool, or the caller may not know of it: the two cannot be told apart."""

    kind = ToolErrorKind.UNKNOWN


class InvalidArguments(JobError):
    """The arguments do not fit the tool's schema; the message names the place."""

    kind = ToolErrorKind.ARGUMENTS


class ToolTimeout(JobError):
    """The tool took too long. What it did until then is not known."""

    kind = ToolErrorKind.TIMEOUT

    def __init__(self, message: str, *, repeatable: bool) -> None:
        super().__init__(message)
        self.permanent = not repeatable


class ToolFailed(JobError):
    """The tool said no, or broke; whoever asks for more attempts gets them."""

    kind = ToolErrorKind.FAILED
    permanent = False


class UnusableOutput(ToolFailed):
    """The tool did what it does, and returned what JSON cannot hold: once is enough."""

    permanent = True


class ToolUnavailable(TransientError):
    """The tool's server is not there just now."""

    kind = ToolErrorKind.UNAVAILABLE


class OutcomeUnknown(JobError):
    """A worker died during this call, and the tool may not be called twice."""

    kind = ToolErrorKind.OUTCOME_UNKNOWN


class CallCanceled(Exception):
    """The job was canceled in the middle of the call."""
