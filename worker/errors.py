"""Why a job failed, by cause. `kind` is what a client sees in the job's `error`."""

from __future__ import annotations


class JobError(Exception):
    """A failure with a name that clients may rely on. Handlers may raise or subclass it."""

    kind = "handler_error"


class UnknownTask(JobError):
    """No handler is registered for the task."""

    kind = "unknown_task"


class InvalidPayload(JobError):
    """The payload does not fit the handler's model."""

    kind = "invalid_payload"


class InvalidResult(JobError):
    """The handler returned something JSON cannot hold."""

    kind = "invalid_result"


class AttemptLost(Exception):
    """This attempt no longer owns the job: another took over, or the job ended or expired."""
