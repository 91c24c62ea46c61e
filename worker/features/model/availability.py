"""Keeps an eye on the model server, and lets jobs begin only while it can serve them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from common import codec
from common.contracts.jobs import Task
from common.contracts.workers import ModelState
from worker.features.model.endpoint import Endpoint, EndpointLocator
from worker.features.model.errors import ModelAnswerInvalid, ModelRefused, ModelUnavailable, NoModel
from worker.features.model.wire.chunks import parse_rows
from worker.features.model.wire.http import (
    ModelHttpClient,
    RetryableFailure,
    check_status,
    read_body,
)

#: Failures in a row after which it is left alone.
FAILURE_THRESHOLD = 3
#: Seconds that it is left alone: twice as long each time, up to the second number.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class CircuitBreaker:
    """Closed: all may pass. Open: nobody. Then one on trial, who decides what follows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until: float | None = None
        #: What went wrong last, in words.
        self.reason = ""

    @property
    def is_open(self) -> bool:
        return self._open_until is not None and self._clock() < self._open_until

    @property
    def on_trial(self) -> bool:
        """Whether one may pass, to see how it goes."""
        return self._open_until is not None and self._clock() >= self._open_until

    @property
    def opens_in_s(self) -> float:
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def record_failure(self, words: str) -> None:
        """A request failed, and it was not its own fault as far as one can tell."""
        self.reason = words
        self._failures += 1
        if self.on_trial or (self._open_until is None and self._failures >= FAILURE_THRESHOLD):
            self._open_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def record_success(self) -> None:
        """A request was answered: all is well."""
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until = None
        self.reason = ""

    reset = record_success


class ResizableSemaphore:
    """A semaphore whose size may change; use it with `async with`."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def resize(self, size: int) -> None:
        """From now on so many; whoever is inside stays."""
        self.size = size
        self._wake()

    async def __aenter__(self) -> None:
        if self.busy < self.size and not self._waiting:
            self.busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # called and canceled at once
                self._leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
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
            turn = self._waiting.popleft()
            if not turn.done():
                self.busy += 1
                turn.set_result(None)


#: Longest time that a server may take for such a small question.
PROBE_READ_TIMEOUT_S = 5.0
#: The same for all of them together.
PROBE_TIMEOUT_S = 10.0
MOST_BYTES = 4 * 1024 * 1024
MOST_SLOTS = 1024
_NAME_CHARS = 200


@dataclass(frozen=True)
class ProbeResult:
    """What was seen."""

    state: ModelState
    #: What is wrong, in words; empty where nothing is.
    reason: str = ""
    #: The first model that it lists; None for not asked, empty for none.
    model: str | None = None
    #: As many answers at once; None for unknown.
    slots: int | None = None
    #: Whether it is llama-server, which knows more than others.
    is_llama_server: bool = False


class Prober:
    """Looks at one server after the other; knows how the last one wants to be asked."""

    def __init__(self, http: ModelHttpClient) -> None:
        self._http = http
        self._endpoint: Endpoint | None = None
        self._has_health = True

    async def probe(self, endpoint: Endpoint, *, closely: bool) -> ProbeResult:
        """Ask whether it is ready, and with `closely` for its slots and its model's name."""
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
        except RetryableFailure as hiccup:
            state = ModelState.LOADING if hiccup.loading else ModelState.DOWN
            return ProbeResult(state, str(hiccup))

    async def _check_health(self, endpoint: Endpoint) -> bool:
        """Whether it says so; False where it does not know the question."""
        try:
            await self._get(endpoint, endpoint.url("/health"))
        except ModelRefused:
            return False
        except ModelAnswerInvalid:
            pass
        return True

    async def _probe_details(self, endpoint: Endpoint) -> ProbeResult:
        slots = await self._slots(endpoint)
        sight = await self._models(endpoint)
        return ProbeResult(
            sight.state, sight.reason, sight.model, slots or None, is_llama_server=slots is not None
        )

    async def _slots(self, endpoint: Endpoint) -> int | None:
        """llama-server's slots, 0 where it does not tell; None for any other server."""
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
            # It is there. Who may not ask for the list may not ask for an answer either.
            reason = str(refused) if refused.status in (401, 403) else ""
            return ProbeResult(ModelState.READY, reason, model="")
        except ModelAnswerInvalid:
            return ProbeResult(ModelState.READY, model="")

    async def _json(self, endpoint: Endpoint, url: str) -> Any:
        try:
            return codec.loads(await self._get(endpoint, url))
        except ValueError:
            raise ModelAnswerInvalid(f"{url} is no JSON") from None

    async def _get(self, endpoint: Endpoint, url: str) -> bytes:
        async with self._http.request(
            endpoint, "GET", url, read_s=PROBE_READ_TIMEOUT_S
        ) as response:
            await check_status(response, endpoint)
            return await read_body(response, MOST_BYTES)


def display_name(model: str) -> str:
    """A model's name as people see it: of a file, its name without directory and ending."""
    name = model.replace("\\", "/")
    if name.lower().endswith(".gguf"):
        name = name.rpartition("/")[2][: -len(".gguf")]
    return "".join(char for char in name if char.isprintable())[:_NAME_CHARS]


log = logging.getLogger(__name__)

#: Tasks that are nothing without a model: they wait while it is away.
MODEL_TASKS = frozenset({Task.CHAT.value, Task.PLAN.value, Task.CODE.value})
#: Seconds between two looks at a server that is well, and at one that is not.
READY_PROBE_EVERY_S = 5.0
DOWN_PROBE_EVERY_S = 0.5
#: A job that came too late to be kept back is tried again after so many seconds: soon where it is
#: kept back then, later where only the next attempt tells.
HELD_TASK_RETRY_S = 1.0
OTHER_TASK_RETRY_S = 5.0

#: Called with how many answers may be made at once, None for any number, and why not more.
OnCapacity = Callable[[int | None, str], None]


class ModelMonitor:
    """The state of the model as this worker knows it."""

    def __init__(self, place: EndpointLocator, prober: Prober, slots: int = 0) -> None:
        self._locator = place
        self._prober = prober
        #: As the operator says; 0 for what the server says.
        self._wanted_slots = slots
        self._breaker = CircuitBreaker()
        self._endpoint: Endpoint | None = None
        self._wakeup = asyncio.Event()
        self._probe_task: asyncio.Task[None] | None = None
        self._reported: tuple[int | None, str] | None = None
        self.semaphore = ResizableSemaphore()
        self.on_capacity: OnCapacity = lambda places, why: None
        self.state = ModelState.ABSENT
        #: What is wrong, in words.
        self.reason = ""
        self.slots = slots or 1
        #: The model's name as the server wants it.
        self.model = ""
        #: Whether the server is llama-server.
        self.is_llama_server = False

    @property
    def name(self) -> str:
        """The model's name as people see it."""
        return display_name(self.model)

    @property
    def url(self) -> str:
        """Where it is; holds no credentials."""
        return self._endpoint.base if self._endpoint is not None else ""

    # -- whoever wants to ask ----------------------------------------------------------------------

    async def endpoint(self, task: str = "") -> Endpoint:
        """The server to ask; raises NoModel, or ModelUnavailable while it is away."""
        endpoint = self._locator.find()
        if endpoint != self._endpoint:  # it has moved
            await self.probe()
            endpoint = self._endpoint
        if endpoint is None:
            raise NoModel
        if self.state in (ModelState.DOWN, ModelState.LOADING):
            raise self.unavailable_error(task)
        return endpoint

    def unavailable_error(self, task: str = "", words: str = "") -> ModelUnavailable:
        """The error of a job that has to wait."""
        why = words or self.reason or "the model server does not answer"
        return ModelUnavailable(why, retry_after_s=self.retry_after_s(task))

    @staticmethod
    def retry_after_s(task: str) -> float:
        """When a job of a task should try again."""
        return HELD_TASK_RETRY_S if task in MODEL_TASKS else OTHER_TASK_RETRY_S

    def record_success(self) -> None:
        if self._breaker.reason:
            self._breaker.record_success()
            if self.state is ModelState.READY:
                self._set_state(self.state, "")
            self._wakeup.set()

    def record_failure(self, words: str) -> None:
        """A request was taken and came to nothing."""
        self._breaker.record_failure(words)
        if self._breaker.is_open:
            self._set_state(ModelState.DOWN, f"requests fail one after the other: {words}")
            self._wakeup.set()

    def mark_unreachable(self, words: str) -> None:
        self._set_state(ModelState.DOWN, words)
        self._wakeup.set()

    def loading(self, words: str) -> None:
        """The server is there and loads its model."""
        self._set_state(ModelState.LOADING, words)
        self._wakeup.set()

    # -- looking -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look now and then, until canceled."""
        while True:
            calm = self.state is ModelState.READY
            try:
                await asyncio.wait_for(
                    self._wakeup.wait(), READY_PROBE_EVERY_S if calm else DOWN_PROBE_EVERY_S
                )
            except asyncio.TimeoutError:
                if calm and self.semaphore.busy:
                    continue  # its answers tell more than a probe would
            self._wakeup.clear()
            try:
                await self.probe()
            except Exception:  # whatever it is, the next look may tell more
                log.exception("the model server could not be looked at")

    async def probe(self) -> ModelState:
        """Look once; whoever asks meanwhile shares what is seen."""
        if self._probe_task is None:
            self._probe_task = asyncio.ensure_future(self._probe())
            self._probe_task.add_done_callback(self._on_probe_done)
        await asyncio.shield(self._probe_task)
        return self.state

    def _on_probe_done(self, task: asyncio.Task[None]) -> None:
        self._probe_task = None
        if not task.cancelled():
            task.exception()  # who waited for it has it; perhaps nobody did

    async def close(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.wait({self._probe_task})

    async def _probe(self) -> None:
        endpoint = self._locator.find()
        moved = endpoint != self._endpoint
        if moved:
            self._endpoint = endpoint
            self._breaker.reset()
            self.model, self.is_llama_server = "", False
        if endpoint is None:
            self._set_state(ModelState.ABSENT, "")
            return
        if self._breaker.is_open:
            return
        closely = moved or self.state is not ModelState.READY or not self.model
        sight = await self._prober.probe(endpoint, closely=closely)
        if endpoint == self._locator.find():  # else it has moved meanwhile
            self._apply(endpoint, sight)
        else:
            self._wakeup.set()

    def _apply(self, endpoint: Endpoint, sight: ProbeResult) -> None:
        if sight.state is ModelState.READY and sight.model is not None:
            self.model = endpoint.model or sight.model
            self.is_llama_server = sight.is_llama_server or self.is_llama_server
            self.slots = self._wanted_slots or sight.slots or 1
        self._set_state(sight.state, sight.reason)

    def _set_state(self, state: ModelState, reason: str) -> None:
        changed = state is not self.state or (state is ModelState.ABSENT and self._reported is None)
        self.state, self.reason = state, reason
        if changed:
            self._log()
        if state is ModelState.ABSENT:
            told: tuple[int | None, str] = None, ""
        elif state is ModelState.READY:
            places = 1 if self._breaker.on_trial else self.slots
            self.semaphore.resize(places)
            told = places, ""
        else:
            told = 0, reason
        if told != self._reported:
            self._reported = told
            self.on_capacity(*told)

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
            log.info("there is no model: set MODEL_URL or run `sluice model serve`")
