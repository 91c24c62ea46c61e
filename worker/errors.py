"""Why a job failed, by cause. `kind` is what a client sees in the job's `error`."""

from __future__ import annotations


class JobError(Exception):
    """A failure with a name that clients may rely on, and that another attempt would not change.

    Handlers may raise or subclass it; `TransientError` is for failures that may pass.
    """

    kind = "handler_error"
    #: Whether another attempt would fail in the same way, even if the request asks for some.
    permanent = True


class TransientError(JobError):
    """A failure that may pass: the job gets another attempt, if it has any left."""

    kind = "transient_error"
    permanent = False

    def __init__(self, *args: object, retry_after_s: float | None = None) -> None:
        super().__init__(*args)
        #: How long whoever failed us asks us to wait; None for the usual backoff.
        self.retry_after_s = retry_after_s


class NotNow(TransientError):
    """The job cannot be done just now, for no fault of its own: the attempt does not count.

    Say when to try again with `retry_after_s`.
    """

    kind = "not_now"


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
