"""Takes no new work while the queue is paused; what runs goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from common.cancellation import cancel
from common.connection import TRANSIENT_ERRORS
from common.contracts.pause import paused_key
from common.pause import Pause, pause_in
from worker.slots import Slots

log = logging.getLogger(__name__)

#: Seconds between two looks, for what the control channel did not tell; the first one is repeated
#: sooner, for until then nobody knows.
LOOK_EVERY_S: Final = 5.0
AGAIN_S: Final = 0.5
#: Why the slots are held.
PAUSED: Final = "paused"


class Pausing:
    """Holds the slots, which everybody asks before taking a message: then nobody takes any."""

    def __init__(
        self, client: Redis, queue: str, slots: Slots, every_s: float = LOOK_EVERY_S
    ) -> None:
        self._client = client
        self._key = paused_key(queue)
        self._slots = slots
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._known = False
        self._pause: Pause | None = None
        slots.hold(PAUSED)  # until it is known

    @property
    def paused(self) -> bool:
        """Whether the queue is."""
        return self._pause is not None

    @property
    def why(self) -> str:
        """Why no new work is begun, in words; empty when it is."""
        if self._pause is None:
            return ""
        return "the queue is paused" + (f": {self._pause.why}" if self._pause.why else "")

    def look_now(self) -> None:
        """It may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look until canceled; trouble is left to the next look."""
        while True:
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.debug("whether the queue is paused is asked later: %s", error)
            except Exception:  # whatever it is, the next look must come
                log.exception("whether the queue is paused is asked later")
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait({waking}, timeout=self._every_s if self._known else AGAIN_S)
            finally:
                await cancel(waking)

    async def run_once(self) -> None:
        """Look once, and hold or go on."""
        self._wake.clear()
        try:
            reply = await self._client.get(self._key)
        except TRANSIENT_ERRORS:
            raise
        except ResponseError as error:
            # Something else lies there, or we may not look: then it is nobody's pause.
            log.log(
                logging.DEBUG if self._known else logging.WARNING,
                "whether the queue is paused cannot be asked: %s",
                error,
            )
            reply = None
        before, self._pause, known = self._pause, pause_in(reply), self._known
        self._known = True
        if self._pause is not None:
            self._slots.hold(PAUSED)
            if before is None:
                log.warning("no new jobs are taken: %s", self.why)
        elif before is not None or not known:
            self._slots.resume(PAUSED)
            if before is not None:
                log.info("the queue goes on; jobs are taken again")
