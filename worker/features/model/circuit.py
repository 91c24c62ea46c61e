"""The circuit of a model server: opened by repeated failures, closed by a trial."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial

from sluice.worker.features.model.endpoint import Endpoint
from sluice.worker.features.model.errors import ModelAnswerInvalid, ModelRefused, ModelTooSlow
from sluice.worker.features.model.timeouts import ModelTimeouts, Stopwatch
from sluice.worker.features.model.types import ChatRequest, NullSink
from sluice.worker.features.model.wire.http import ModelHttpClient, RetryableFailure

#: Consecutive failures that open the circuit.
FAILURE_THRESHOLD = 3
#: Seconds that the circuit stays open: doubled each time, up to LONGEST_PAUSE_S.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class CircuitBreaker:
    """Closed: requests pass. Open: none pass. After the pause, one trial request decides."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until: float | None = None
        #: Description of the last failure.
        self.reason = ""

    @property
    def is_open(self) -> bool:
        return self._open_until is not None and self._clock() < self._open_until

    @property
    def on_trial(self) -> bool:
        """True if the pause is over and a trial request may pass."""
        return self._open_until is not None and self._clock() >= self._open_until

    @property
    def opens_in_s(self) -> float:
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def record_failure(self, reason: str) -> None:
        """Count a failed request; not for failures that the request itself caused."""
        self.reason = reason
        self._failures += 1
        if self.on_trial or (self._open_until is None and self._failures >= FAILURE_THRESHOLD):
            self._open_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def record_success(self) -> None:
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until = None
        self.reason = ""


#: Seconds within which a trial request must be answered.
TIMEOUT_S = 10.0
_TEXT = "Hi"


class TrialOutcome(Enum):
    """What a trial request has shown."""

    ANSWERED = "answered"
    FAILED = "failed"
    #: The server is unreachable, loading or overloaded, or did not answer within TIMEOUT_S.
    NO_ANSWER = "no_answer"
    #: The server does not accept the request.
    REFUSED = "refused"


#: Sends a request to a server, for the model of this name if there is one.
TrialRequest = Callable[[ModelHttpClient, Endpoint, str], Awaitable[None]]


async def request_token(http: ModelHttpClient, endpoint: Endpoint, model: str) -> None:
    """Request one token of an answer, in the same way as for a job."""
    from sluice.worker.features.model.completion import (  # as all that only requests need
        PartialCompletion,
        StreamingRequest,
        request_body,
    )

    asked = ChatRequest([{"role": "user", "content": _TEXT}], max_tokens=1)
    body = request_body(asked, model, extras=False)
    request = StreamingRequest(http, endpoint, NullSink(), Stopwatch(ModelTimeouts()))
    await request.run(body, PartialCompletion(model), {})


async def request_vector(http: ModelHttpClient, endpoint: Endpoint, model: str) -> None:
    """Request one short embedding."""
    from sluice.worker.features.model.wire.embeddings import request_embeddings

    await request_embeddings(http, endpoint, model, [_TEXT], TIMEOUT_S)


async def send_trial(
    request: TrialRequest, http: ModelHttpClient, endpoint: Endpoint, model: str
) -> TrialOutcome:
    """Send a trial request. Its cost is one token."""
    try:
        await asyncio.wait_for(partial(request, http, endpoint, model)(), TIMEOUT_S)
    except ModelRefused:
        return TrialOutcome.REFUSED
    except (ModelTooSlow, asyncio.TimeoutError):
        return TrialOutcome.NO_ANSWER
    except RetryableFailure as failure:
        is_away = failure.busy or failure.loading or not failure.reached
        return TrialOutcome.NO_ANSWER if is_away else TrialOutcome.FAILED
    except ModelAnswerInvalid:
        return TrialOutcome.FAILED
    return TrialOutcome.ANSWERED
