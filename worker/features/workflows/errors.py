"""How a step fails, by cause, and what a workflow's `errors` say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from common.contracts import values_of
from common.contracts.jobs import DataField, ErrorKind
from common.contracts.workflow.statuses import ErrorField, WorkflowError
from worker import errors
from worker.errors import JobError

#: Longer messages are cut.
MOST_CHARS: Final = 2000
_CODE: Final = re.compile(r"\A[a-z][a-z0-9_]{0,63}\Z")
#: Kinds of core errors that say how an attempt ended, and nothing about the step.
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
    """A step fails for good: another attempt would fail in the same way.

    `code` is for programs, such as `no_photos`; the message is for people, and says what to do.
    """

    def __init__(self, code: str, message: str) -> None:
        if not _CODE.match(code):
            raise ValueError(f"{code!r} is no code; write it like no_photos")
        super().__init__(message)
        self.code = code
        self.kind = code

    def __reduce__(self) -> tuple[type[StepError], tuple[str, str]]:
        return StepError, (self.code, str(self))


class StepLost(Exception):
    """The execution no longer counts: stop, nothing that it writes would be taken."""


class StepCancelled(Exception):
    """Somebody wants the step to end: stop."""


def step_error_entry(error: Mapping[str, Any]) -> dict[str, str]:
    """An error of a core job as a workflow's `errors` has it.

    A code that the step chose is its own. Whatever else befell the core job is `step_failed`,
    and its kind stands beside.
    """
    kind = str(error.get(DataField.KIND) or "")
    message = str(error.get(DataField.MESSAGE) or "")[:MOST_CHARS]
    if _CODE.match(kind) and kind not in _GENERIC_KINDS:
        return error_entry(kind, message)
    found = error_entry(WorkflowError.STEP_FAILED.value, message or "the step failed")
    return {**found, ErrorField.KIND: kind} if kind else found


def error_entry(code: str, message: str) -> dict[str, str]:
    return {ErrorField.CODE: code, ErrorField.MESSAGE: message}
