"""Errors of the model server by cause; each message has a remedy."""

from __future__ import annotations

import re

from sluice.common.contracts.models import ModelErrorKind
from sluice.common.observability import logs
from sluice.worker.errors import JobError, NotNow, TransientError

#: Most characters quoted from a server's error message.
MOST_CHARS = 500
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f]+")


class NoModel(JobError):
    """No model is configured."""

    kind = ModelErrorKind.NO_MODEL

    def __init__(self) -> None:
        super().__init__(
            "there is no model: set MODEL_URL to an OpenAI-compatible server "
            "(llama-server, Ollama, vLLM), or run `sluice model serve`"
        )


class ModelUnavailable(NotNow):
    """The server is down, loading or busy: the job waits without using up an attempt."""

    kind = ModelErrorKind.UNAVAILABLE


class ModelConnectTimeout(ModelUnavailable):
    """Connecting to the server timed out."""

    kind = ModelErrorKind.CONNECT_TIMEOUT


class ModelRefused(JobError):
    """The server rejected the request permanently."""

    kind = ModelErrorKind.REFUSED

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        #: HTTP status; 0 if there was no response.
        self.status = status


class ModelFailed(TransientError):
    """The server failed before it had sent any part of the answer."""

    kind = ModelErrorKind.FAILED


class ModelBroken(JobError):
    """The server broke off in the middle of an answer.

    Clients have received a part of it, so only a job with several attempts configured is retried.
    """

    kind = ModelErrorKind.BROKEN
    permanent = False


class ModelAnswerInvalid(JobError):
    """The server's answer is invalid."""

    kind = ModelErrorKind.GARBAGE
    permanent = False


class ModelTooSlow(JobError):
    """A timeout of the model has expired; the subclasses say which."""

    permanent = False


class FirstTokenTimeout(ModelTooSlow):
    """The answer did not begin in time."""

    kind = ModelErrorKind.FIRST_TOKEN_TIMEOUT


class IdleTimeout(ModelTooSlow):
    """The answer stalled for too long."""

    kind = ModelErrorKind.IDLE_TIMEOUT


class TotalTimeout(ModelTooSlow):
    """The whole answer took too long."""

    kind = ModelErrorKind.TOTAL_TIMEOUT


def sanitize_text(text: object, secret: str = "") -> str:
    """Text of a server as one line without secrets, cut to MOST_CHARS."""
    line = _BLANKS.sub(" ", str(text)[: 4 * MOST_CHARS]).strip()
    if secret:
        line = line.replace(secret, logs.MASK)
    line = logs.mask(line)
    return line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}…"
