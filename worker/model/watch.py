"""Keeps an eye on the model server, and lets jobs begin only while it can serve them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.contracts.jobs import Task
from common.contracts.workers import ModelState
from worker.model.breaker import Breaker
from worker.model.endpoint import Endpoint, Place
from worker.model.errors import ModelUnavailable, NoModel
from worker.model.places import Places
from worker.model.probe import Prober, Sight, shown_name

log = logging.getLogger(__name__)

#: Tasks that are nothing without a model: they wait while it is away.
MODEL_TASKS = frozenset({Task.CHAT.value, Task.PLAN.value, Task.CODE.value})
#: Seconds between two looks at a server that is well, and at one that is not.
CALM_S = 5.0
SOON_S = 0.5
#: A job that came too late to be kept back is tried again after so many seconds: soon where it is
#: kept back then, later where only the next attempt tells.
KEPT_BACK_S = 1.0
LATER_S = 5.0

#: Called with how many answers may be made at once, None for any number, and why not more.
OnPlaces = Callable[[int | None, str], None]


class Watch:
    """The state of the model as this worker knows it."""

    def __init__(self, place: Place, prober: Prober, slots: int = 0) -> None:
        self._place = place
        self._prober = prober
        #: As the operator says; 0 for what the server says.
        self._wanted_slots = slots
        self._breaker = Breaker()
        self._endpoint: Endpoint | None = None
        self._nudged = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._told: tuple[int | None, str] | None = None
        self.places = Places()
        self.on_places: OnPlaces = lambda places, why: None
        self.state = ModelState.ABSENT
        #: What is wrong, in words.
        self.reason = ""
        self.slots = slots or 1
        #: The model's name as the server wants it.
        self.model = ""
        #: Whether the server is llama-server.
        self.llama = False

    @property
    def name(self) -> str:
        """The model's name as people see it."""
        return shown_name(self.model)

    @property
    def url(self) -> str:
        """Where it is; holds no credentials."""
        return self._endpoint.base if self._endpoint is not None else ""

    # -- whoever wants to ask ----------------------------------------------------------------------

    async def endpoint(self, task: str = "") -> Endpoint:
        """The server to ask; raises NoModel, or ModelUnavailable while it is away."""
        endpoint = self._place.find()
        if endpoint != self._endpoint:  # it has moved
            await self.look()
            endpoint = self._endpoint
        if endpoint is None:
            raise NoModel
        if self.state in (ModelState.DOWN, ModelState.LOADING):
            raise self.unavailable(task)
        return endpoint

    def unavailable(self, task: str = "", words: str = "") -> ModelUnavailable:
        """The error of a job that has to wait."""
        why = words or self.reason or "the model server does not answer"
        return ModelUnavailable(why, retry_after_s=self.retry_after_s(task))

    @staticmethod
    def retry_after_s(task: str) -> float:
        """When a job of a task should try again."""
        return KEPT_BACK_S if task in MODEL_TASKS else LATER_S

    def worked(self) -> None:
        """An answer came."""
        if self._breaker.reason:
            self._breaker.worked()
            if self.state is ModelState.READY:
                self._settle(self.state, "")
            self._nudged.set()

    def failed(self, words: str) -> None:
        """A request was taken and came to nothing."""
        self._breaker.failed(words)
        if self._breaker.is_open:
            self._settle(ModelState.DOWN, f"requests fail one after the other: {words}")
            self._nudged.set()

    def missed(self, words: str) -> None:
        """The server was not there."""
        self._settle(ModelState.DOWN, words)
        self._nudged.set()

    def loading(self, words: str) -> None:
        """The server is there and loads its model."""
        self._settle(ModelState.LOADING, words)
        self._nudged.set()

    # -- looking -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look now and then, until canceled."""
        while True:
            calm = self.state is ModelState.READY
            try:
                await asyncio.wait_for(self._nudged.wait(), CALM_S if calm else SOON_S)
            except asyncio.TimeoutError:
                if calm and self.places.busy:
                    continue  # its answers tell more than a probe would
            self._nudged.clear()
            try:
                await self.look()
            except Exception:  # whatever it is, the next look may tell more
                log.exception("the model server could not be looked at")

    async def look(self) -> ModelState:
        """Look once; whoever asks meanwhile shares what is seen."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)
        return self.state

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # who waited for it has it; perhaps nobody did

    async def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look(self) -> None:
        endpoint = self._place.find()
        moved = endpoint != self._endpoint
        if moved:
            self._endpoint = endpoint
            self._breaker.reset()
            self.model, self.llama = "", False
        if endpoint is None:
            self._settle(ModelState.ABSENT, "")
            return
        if self._breaker.is_open:
            return
        closely = moved or self.state is not ModelState.READY or not self.model
        sight = await self._prober.look(endpoint, closely=closely)
        if endpoint == self._place.find():  # else it has moved meanwhile
            self._take(endpoint, sight)
        else:
            self._nudged.set()

    def _take(self, endpoint: Endpoint, sight: Sight) -> None:
        if sight.state is ModelState.READY and sight.model is not None:
            self.model = endpoint.model or sight.model
            self.llama = sight.llama or self.llama
            self.slots = self._wanted_slots or sight.slots or 1
        self._settle(sight.state, sight.reason)

    def _settle(self, state: ModelState, reason: str) -> None:
        changed = state is not self.state or (state is ModelState.ABSENT and self._told is None)
        self.state, self.reason = state, reason
        if changed:
            self._log()
        if state is ModelState.ABSENT:
            told: tuple[int | None, str] = None, ""
        elif state is ModelState.READY:
            places = 1 if self._breaker.on_trial else self.slots
            self.places.resize(places)
            told = places, ""
        else:
            told = 0, reason
        if told != self._told:
            self._told = told
            self.on_places(*told)

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
                self._place.setting,
            )
        else:
            log.info("there is no model: set MODEL_URL or run `sluice model serve`")
