"""Monitors the model server and admits jobs only while it can serve them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from sluice.common import codec
from sluice.common.contracts.jobs import Task
from sluice.common.contracts.workers import ModelState
from sluice.worker.features.model.circuit import CircuitBreaker, TrialOutcome
from sluice.worker.features.model.endpoint import Endpoint, EndpointLocator
from sluice.worker.features.model.errors import (
    ModelAnswerInvalid,
    ModelRefused,
    ModelUnavailable,
    NoModel,
)
from sluice.worker.features.model.wire.chunks import parse_rows
from sluice.worker.features.model.wire.http import (
    ModelHttpClient,
    RetryableFailure,
    check_status,
    read_body,
)


class ResizableSemaphore:
    """A semaphore whose size can change; use it with `async with`."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def resize(self, size: int) -> None:
        """Change the size. Current holders are not affected."""
        self.size = size
        self._wake()

    async def __aenter__(self) -> None:
        if self.busy < self.size and not self._waiting:
            self.busy += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # woken and canceled at the same time
                self._leave()
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self.busy -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.busy < self.size:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.busy += 1
                waiter.set_result(None)


#: Read timeout of one probe request.
PROBE_READ_TIMEOUT_S = 5.0
#: Timeout of all requests of a probe.
PROBE_TIMEOUT_S = 10.0
MOST_BYTES = 4 * 1024 * 1024
MOST_SLOTS = 1024
_NAME_CHARS = 200


@dataclass(frozen=True)
class ProbeResult:
    """State of a model server."""

    state: ModelState
    #: What is wrong; empty if nothing is.
    reason: str = ""
    #: First model that the server lists; None if not asked, empty if it lists none.
    model: str | None = None
    #: Parallel answers; None if unknown.
    slots: int | None = None
    #: True for llama-server, which reports more than other servers.
    is_llama_server: bool = False


class Prober:
    """Probes a server; remembers whether the last one has `/health`."""

    def __init__(self, http: ModelHttpClient) -> None:
        self._http = http
        self._endpoint: Endpoint | None = None
        self._has_health = True

    async def probe(self, endpoint: Endpoint, *, closely: bool) -> ProbeResult:
        """Check whether the server is ready; with `closely`, also get its slots and model."""
        if endpoint != self._endpoint:
            self._endpoint, self._has_health = endpoint, True
        try:
            return await asyncio.wait_for(self._probe(endpoint, closely=closely), PROBE_TIMEOUT_S)
        except asyncio.TimeoutError:
            return ProbeResult(ModelState.DOWN, f"{endpoint.base} does not answer")

    async def _probe(self, endpoint: Endpoint, *, closely: bool) -> ProbeResult:
        try:
            if self._has_health:
                if await self._check_health(endpoint):
                    return (
                        await self._probe_details(endpoint)
                        if closely
                        else ProbeResult(ModelState.READY)
                    )
                self._has_health = False
            return await self._models(endpoint)
        except RetryableFailure as failure:
            if failure.invalid:  # a request shows whether the server is of any use
                return ProbeResult(ModelState.READY, str(failure), model="")
            state = ModelState.LOADING if failure.loading else ModelState.DOWN
            return ProbeResult(state, str(failure))

    async def _check_health(self, endpoint: Endpoint) -> bool:
        """True if `/health` reports ready; False if the server does not have it."""
        try:
            await self._get(endpoint, endpoint.url("/health"))
        except ModelRefused:
            return False
        except ModelAnswerInvalid:
            pass
        return True

    async def _probe_details(self, endpoint: Endpoint) -> ProbeResult:
        slots = await self._slots(endpoint)
        result = await self._models(endpoint)
        return ProbeResult(
            result.state,
            result.reason,
            result.model,
            slots or None,
            is_llama_server=slots is not None,
        )

    async def _slots(self, endpoint: Endpoint) -> int | None:
        """Slots of llama-server, 0 if it reports no valid number; None for any other server."""
        try:
            props = await self._json(endpoint, endpoint.url("/props"))
        except (RetryableFailure, ModelRefused, ModelAnswerInvalid):
            return None
        total = props.get("total_slots") if isinstance(props, dict) else None
        if total is None:
            return None
        return total if isinstance(total, int) and 0 < total <= MOST_SLOTS else 0

    async def _models(self, endpoint: Endpoint) -> ProbeResult:
        try:
            rows = parse_rows(await self._json(endpoint, endpoint.api("/models")))
            first = rows[0].get("id") if rows else None
            return ProbeResult(ModelState.READY, model=first if isinstance(first, str) else "")
        except ModelRefused as refused:
            # The server is up. A key that may not list models may not request answers either.
            reason = str(refused) if refused.status in (401, 403) else ""
            return ProbeResult(ModelState.READY, reason, model="")
        except ModelAnswerInvalid:
            return ProbeResult(ModelState.READY, model="")

    async def _json(self, endpoint: Endpoint, url: str) -> Any:
        try:
            return codec.loads(await self._get(endpoint, url))
        except ValueError:
            raise ModelAnswerInvalid(f"{url} did not return JSON") from None

    async def _get(self, endpoint: Endpoint, url: str) -> bytes:
        async with self._http.request(
            endpoint, "GET", url, read_s=PROBE_READ_TIMEOUT_S
        ) as response:
            await check_status(response, endpoint)
            return await read_body(response, MOST_BYTES)


def display_name(model: str) -> str:
    """Name for display: for a GGUF file, its name without directory and extension."""
    name = model.replace("\\", "/")
    if name.lower().endswith(".gguf"):
        name = name.rpartition("/")[2][: -len(".gguf")]
    return "".join(char for char in name if char.isprintable())[:_NAME_CHARS]


log = logging.getLogger(__name__)

#: Tasks that need a model: they are held back while it is unavailable.
MODEL_TASKS = frozenset({Task.CHAT.value, Task.PLAN.value, Task.CODE.value})
#: Seconds between two probes of a server that is ready, and of one that is not.
READY_PROBE_EVERY_S = 5.0
DOWN_PROBE_EVERY_S = 0.5
#: Seconds between two trial requests to a server whose circuit is open.
TRIAL_EVERY_S = 3.0
#: Seconds until the retry of a job that had started when the model became unavailable. Short if the
#: task is then held back; longer if only the next attempt can find out.
HELD_TASK_RETRY_S = 1.0
OTHER_TASK_RETRY_S = 3.0

#: Sends a trial request to a server, for the model of this name.
SendTrial = Callable[[Endpoint, str], Awaitable[TrialOutcome]]
#: Called with the number of answers allowed at once (None for no limit), and the reason.
OnCapacity = Callable[[int | None, str], None]


class ModelMonitor:
    """State of the model server as this worker knows it."""

    def __init__(
        self,
        locator: EndpointLocator,
        prober: Prober,
        send_trial: SendTrial,
        slots: int = 0,
        on_capacity: OnCapacity = lambda slots, why: None,
    ) -> None:
        self._locator = locator
        self._prober = prober
        self._send_trial = send_trial
        #: `time.monotonic()` of the next trial request.
        self._next_trial = 0.0
        #: True once a trial request has failed since the circuit was last closed.
        self._trial_failed = False
        #: Configured number; 0 to use the number that the server reports.
        self._configured_slots = slots
        self._breaker = CircuitBreaker()
        self._endpoint: Endpoint | None = None
        self._wakeup = asyncio.Event()
        self._probe_task: asyncio.Task[None] | None = None
        self._reported: tuple[int | None, str] | None = None
        self.semaphore = ResizableSemaphore()
        self._on_capacity = on_capacity
        self.state = ModelState.ABSENT
        #: What is wrong; empty if nothing is.
        self.reason = ""
        self.slots = slots or 1
        #: The model's name in requests to the server.
        self.model = ""
        self.is_llama_server = False

    @property
    def name(self) -> str:
        """The model's name for display."""
        return display_name(self.model)

    @property
    def url(self) -> str:
        """Address of the server, without credentials."""
        return self._endpoint.base if self._endpoint is not None else ""

    # -- for requests -----------------------------------------------------------------------------

    async def endpoint(self, task: str = "") -> Endpoint:
        """The server to use; raises NoModel, or ModelUnavailable while it is down or loading."""
        endpoint = self._locator.find()
        if endpoint != self._endpoint:  # announced elsewhere since
            await self.probe()
            endpoint = self._endpoint
        if endpoint is None:
            raise NoModel
        if self.state in (ModelState.DOWN, ModelState.LOADING):
            raise self.unavailable_error(task)
        return endpoint

    def unavailable_error(self, task: str = "", reason: str = "") -> ModelUnavailable:
        """The error for a job that has to wait."""
        why = reason or self.reason or "the model server does not answer"
        return ModelUnavailable(why, retry_after_s=self.retry_after_s(task))

    @staticmethod
    def retry_after_s(task: str) -> float:
        """Seconds until a job of this task should be retried."""
        return HELD_TASK_RETRY_S if task in MODEL_TASKS else OTHER_TASK_RETRY_S

    def record_success(self) -> None:
        if self._breaker.reason:
            self._close_circuit()
            if self.state is ModelState.READY:
                self._set_state(self.state, "")
            self._wakeup.set()

    def record_failure(self, reason: str) -> None:
        """Count a request that the server accepted and failed."""
        self._breaker.record_failure(reason)
        if self._breaker.is_open:
            self._set_state(ModelState.DOWN, f"requests keep failing: {reason}")
            self._wakeup.set()

    def mark_unreachable(self, reason: str) -> None:
        self._set_state(ModelState.DOWN, reason)
        self._wakeup.set()

    def loading(self, reason: str) -> None:
        """The server is up and loads its model."""
        self._set_state(ModelState.LOADING, reason)
        self._wakeup.set()

    # -- probing ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe periodically, until canceled."""
        while True:
            ready = self.state is ModelState.READY
            try:
                await asyncio.wait_for(
                    self._wakeup.wait(), READY_PROBE_EVERY_S if ready else DOWN_PROBE_EVERY_S
                )
            except asyncio.TimeoutError:
                if ready and self.semaphore.busy:
                    continue  # running answers show more than a probe
            self._wakeup.clear()
            try:
                await self.probe()
            except Exception:  # the next probe may succeed
                log.exception("could not probe the model server")

    async def probe(self) -> ModelState:
        """Probe once; concurrent callers share the result."""
        if self._probe_task is None:
            self._probe_task = asyncio.ensure_future(self._probe())
            self._probe_task.add_done_callback(self._on_probe_done)
        await asyncio.shield(self._probe_task)
        return self.state

    def _on_probe_done(self, task: asyncio.Task[None]) -> None:
        self._probe_task = None
        if not task.cancelled():
            task.exception()  # retrieve the exception: there may be no waiter

    async def close(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.wait({self._probe_task})

    async def _probe(self) -> None:
        endpoint = self._locator.find()
        moved = endpoint != self._endpoint
        if moved:
            self._endpoint = endpoint
            self._close_circuit()
            self.model, self.is_llama_server = "", False
        if endpoint is None:
            self._set_state(ModelState.ABSENT, "")
            return
        if self._breaker.is_open and not await self._has_recovered(endpoint):
            return
        closely = moved or self.state is not ModelState.READY or not self.model
        result = await self._prober.probe(endpoint, closely=closely)
        if endpoint == self._locator.find():  # else it has changed meanwhile
            self._apply(endpoint, result)
        else:
            self._wakeup.set()

    async def _has_recovered(self, endpoint: Endpoint) -> bool:
        """Close the circuit if the server answers a trial request after it has failed one.

        If it never fails any, only the requests of jobs show whether it works: the circuit stays
        open until its pause is over.
        """
        now = time.monotonic()
        if now < self._next_trial:
            return False
        self._next_trial = now + TRIAL_EVERY_S
        outcome = await self._send_trial(endpoint, self.model)
        if outcome in (TrialOutcome.FAILED, TrialOutcome.NO_ANSWER):
            self._trial_failed = True
        if outcome is not TrialOutcome.ANSWERED or not self._trial_failed:
            return False
        self._close_circuit()
        return True

    def _close_circuit(self) -> None:
        self._breaker.record_success()
        self._trial_failed = False

    def _apply(self, endpoint: Endpoint, result: ProbeResult) -> None:
        if result.state is ModelState.READY and result.model is not None:
            self.model = endpoint.model or result.model
            self.is_llama_server = result.is_llama_server or self.is_llama_server
            self.slots = self._configured_slots or result.slots or 1
        self._set_state(result.state, result.reason)

    def _set_state(self, state: ModelState, reason: str) -> None:
        changed = state is not self.state or (state is ModelState.ABSENT and self._reported is None)
        self.state, self.reason = state, reason
        if changed:
            self._log()
        if state is ModelState.ABSENT:
            capacity: tuple[int | None, str] = None, ""
        elif state is ModelState.READY:
            slots = 1 if self._breaker.on_trial else self.slots
            self.semaphore.resize(slots)
            capacity = slots, ""
        else:
            capacity = 0, reason
        if capacity != self._reported:
            self._reported = capacity
            self._on_capacity(*capacity)

    def _log(self) -> None:
        if self.state is ModelState.READY:
            log.info("the model %s at %s is ready, %d at once", self.name, self.url, self.slots)
        elif self.state is ModelState.LOADING:
            log.info("the model at %s is loading; its jobs wait", self.url)
        elif self.state is ModelState.DOWN:
            log.warning(
                "the model is down, its jobs wait: %s. Start its server (`sluice model serve`), "
                "or set %s_URL to one that runs",
                self.reason,
                self._locator.setting,
            )
        else:
            log.info("no model configured: set MODEL_URL or run `sluice model serve`")
