"""Errors of a step, and their form in a workflow's `errors`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import DataField, ErrorKind
from sluice.common.contracts.workflow.statuses import ErrorField, WorkflowError
from sluice.worker import errors
from sluice.worker.errors import JobError

#: Longer messages are cut.
MOST_CHARS: Final = 2000
_CODE: Final = re.compile(r"\A[a-z][a-z0-9_]{0,63}\Z")
#: Kinds of core job errors that describe how an attempt ended and nothing about the step.
_GENERIC_KINDS: Final = frozenset(
    set(values_of(ErrorKind))
    | {
        each.kind
        for each in (
            errors.JobError,
            errors.TransientError,
            errors.NotNow,
            errors.UnknownTask,
            errors.InvalidPayload,
            errors.InvalidResult,
        )
    }
)


class StepError(JobError):
    """A permanent failure of a step: another attempt would fail in the same way.

    `code` is for programs, such as `no_photos`; the message is for people, with a remedy.
    """

    def __init__(self, code: str, message: str) -> None:
        if not _CODE.match(code):
            raise ValueError(f"{code!r} is not a valid code; use a form such as no_photos")
        super().__init__(message)
        self.code = code
        self.kind = code

    def __reduce__(self) -> tuple[type[StepError], tuple[str, str]]:
        return StepError, (self.code, str(self))


class StepLost(Exception):
    """The execution is no longer current: stop, its writes would be refused."""


class StepCancelled(Exception):
    """Cancellation was requested: stop."""


def step_error_entry(error: Mapping[str, Any]) -> dict[str, str]:
    """An error of a core job as an entry of a workflow's `errors`.

    A code chosen by the step is kept. Any other error becomes `step_failed` with its kind.
    """
    kind = str(error.get(DataField.KIND) or "")
    message = str(error.get(DataField.MESSAGE) or "")[:MOST_CHARS]
    if _CODE.match(kind) and kind not in _GENERIC_KINDS:
        return error_entry(kind, message)
    found = error_entry(WorkflowError.STEP_FAILED.value, message or "the step failed")
    return {**found, ErrorField.KIND: kind} if kind else found


def error_entry(code: str, message: str) -> dict[str, str]:
    return {ErrorField.CODE: code, ErrorField.MESSAGE: message}
