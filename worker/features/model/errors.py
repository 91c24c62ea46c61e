"""What may go wrong with a model, by cause; each says what to do about it."""

from __future__ import annotations

import re

from common.contracts.models import ModelErrorKind
from common.observability import logs
from worker.errors import JobError, NotNow, TransientError

#: Most that is repeated of what a server says of its troubles.
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
    """The server is down, loading or busy: the job waits, at no cost."""

    kind = ModelErrorKind.UNAVAILABLE


class ModelConnectTimeout(ModelUnavailable):
    """It takes no connections, and does not refuse them either."""

    kind = ModelErrorKind.CONNECT_TIMEOUT


class ModelRefused(JobError):
    """The server does not want this request, and would not later."""

    kind = ModelErrorKind.REFUSED

    def __init__(self, words: str, status: int = 0) -> None:
        super().__init__(words)
        #: Of the answer; 0 where there was none.
        self.status = status


class ModelFailed(TransientError):
    """The server is there, but failed at this request before it had said anything."""

    kind = ModelErrorKind.FAILED


class ModelBroken(JobError):
    """The server broke off in the middle of an answer.

    Watchers have seen a part of it, so that only a request that asked for several attempts gets
    another one.
    """

    kind = ModelErrorKind.BROKEN
    permanent = False


class ModelAnswerInvalid(JobError):
    """What the server said makes no sense."""

    kind = ModelErrorKind.GARBAGE
    permanent = False


class ModelTooSlow(JobError):
    """A budget is spent; the subclasses say which one."""

    permanent = False


class FirstTokenTimeout(ModelTooSlow):
    """The answer did not begin in time."""

    kind = ModelErrorKind.FIRST_TOKEN_TIMEOUT


class IdleTimeout(ModelTooSlow):
    """The answer stood still for too long."""

    kind = ModelErrorKind.IDLE_TIMEOUT


class TotalTimeout(ModelTooSlow):
    """The whole answer took too long."""

    kind = ModelErrorKind.TOTAL_TIMEOUT


def sanitize_text(words: object, secret: str = "") -> str:
    """What a server said, in one line that may be shown to anybody."""
    text = _BLANKS.sub(" ", str(words)[: 4 * MOST_CHARS]).strip()
    if secret:
        text = text.replace(secret, logs.MASK)
    text = logs.mask(text)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
