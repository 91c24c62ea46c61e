"""Exceptions with which a job fails. Clients see `kind` in the job's `error`."""

from __future__ import annotations


class JobError(Exception):
    """A permanent failure: another attempt would fail in the same way.

    Handlers may raise or subclass it. Use `TransientError` for failures that may pass.
    """

    kind = "handler_error"
    #: If True, the job is not retried even if the request asks for more attempts.
    permanent = True


class TransientError(JobError):
    """A failure that may pass. The job is retried while it has attempts left."""

    kind = "transient_error"
    permanent = False

    def __init__(self, *args: object, retry_after_s: float | None = None) -> None:
        super().__init__(*args)
        #: Seconds to wait, as requested by the service that failed; None for the usual backoff.
        self.retry_after_s = retry_after_s


class NotNow(TransientError):
    """The job cannot run at the moment, for a reason outside the job. The attempt does not count.

    Set `retry_after_s` to the time of the next attempt.
    """

    kind = "not_now"


class UnknownTask(JobError):
    """No handler is registered for the task."""

    kind = "unknown_task"


class InvalidPayload(JobError):
    """The payload does not fit the handler's model."""

    kind = "invalid_payload"


class InvalidResult(JobError):
    """The handler returned a value that cannot be encoded as JSON."""

    kind = "invalid_result"


class AttemptLost(Exception):
    """The attempt no longer owns the job: another attempt began, or the job ended or expired."""
