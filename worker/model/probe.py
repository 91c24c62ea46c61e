"""One look at a model server: is it there, how many at once, and what is its model called."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from common import codec
from common.contracts.workers import ModelState
from worker.model.chunks import rows_in
from worker.model.endpoint import Endpoint
from worker.model.errors import ModelAnswerInvalid, ModelRefused
from worker.model.http import Hiccup, Http, body_of, check

#: Longest time that a server may take for such a small question.
ANSWER_S = 5.0
#: The same for all of them together.
LOOK_S = 10.0
MOST_BYTES = 4 * 1024 * 1024
MOST_SLOTS = 1024
_NAME_CHARS = 200


@dataclass(frozen=True)
class Sight:
    """What was seen."""

    state: ModelState
    #: What is wrong, in words; empty where nothing is.
    reason: str = ""
    #: The first model that it lists; None for not asked, empty for none.
    model: str | None = None
    #: As many answers at once; None for unknown.
    slots: int | None = None
    #: Whether it is llama-server, which knows more than others.
    llama: bool = False


class Prober:
    """Looks at one server after the other; knows how the last one wants to be asked."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._endpoint: Endpoint | None = None
        self._has_health = True

    async def look(self, endpoint: Endpoint, *, closely: bool) -> Sight:
        """Ask whether it is ready, and with `closely` for its slots and its model's name."""
        if endpoint != self._endpoint:
            self._endpoint, self._has_health = endpoint, True
        try:
            return await asyncio.wait_for(self._look(endpoint, closely=closely), LOOK_S)
        except asyncio.TimeoutError:
            return Sight(ModelState.DOWN, f"{endpoint.base} does not answer")

    async def _look(self, endpoint: Endpoint, *, closely: bool) -> Sight:
        try:
            if self._has_health:
                if await self._healthy(endpoint):
                    return await self._closely(endpoint) if closely else Sight(ModelState.READY)
                self._has_health = False
            return await self._models(endpoint)
        except Hiccup as hiccup:
            state = ModelState.LOADING if hiccup.loading else ModelState.DOWN
            return Sight(state, str(hiccup))

    async def _healthy(self, endpoint: Endpoint) -> bool:
        """Whether it says so; False where it does not know the question."""
        try:
            await self._get(endpoint, endpoint.url("/health"))
        except ModelRefused:
            return False
        except ModelAnswerInvalid:
            pass
        return True

    async def _closely(self, endpoint: Endpoint) -> Sight:
        slots = await self._slots(endpoint)
        sight = await self._models(endpoint)
        return Sight(sight.state, sight.reason, sight.model, slots or None, llama=slots is not None)

    async def _slots(self, endpoint: Endpoint) -> int | None:
        """llama-server's slots, 0 where it does not tell; None for any other server."""
        try:
            props = await self._json(endpoint, endpoint.url("/props"))
        except (Hiccup, ModelRefused, ModelAnswerInvalid):
            return None
        total = props.get("total_slots") if isinstance(props, dict) else None
        if total is None:
            return None
        return total if isinstance(total, int) and 0 < total <= MOST_SLOTS else 0

    async def _models(self, endpoint: Endpoint) -> Sight:
        try:
            rows = rows_in(await self._json(endpoint, endpoint.api("/models")))
            first = rows[0].get("id") if rows else None
            return Sight(ModelState.READY, model=first if isinstance(first, str) else "")
        except ModelRefused as refused:
            # It is there. Who may not ask for the list may not ask for an answer either.
            reason = str(refused) if refused.status in (401, 403) else ""
            return Sight(ModelState.READY, reason, model="")
        except ModelAnswerInvalid:
            return Sight(ModelState.READY, model="")

    async def _json(self, endpoint: Endpoint, url: str) -> Any:
        try:
            return codec.loads(await self._get(endpoint, url))
        except ValueError:
            raise ModelAnswerInvalid(f"{url} is no JSON") from None

    async def _get(self, endpoint: Endpoint, url: str) -> bytes:
        async with self._http.request(endpoint, "GET", url, read_s=ANSWER_S) as response:
            await check(response, endpoint)
            return await body_of(response, MOST_BYTES)


def shown_name(model: str) -> str:
    """A model's name as people see it: of a file, its name without directory and ending."""
    name = model.replace("\\", "/")
    if name.lower().endswith(".gguf"):
        name = name.rpartition("/")[2][: -len(".gguf")]
    return "".join(char for char in name if char.isprintable())[:_NAME_CHARS]
