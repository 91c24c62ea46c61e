"""Whether new jobs are taken on: not while the box, or every worker, is short of memory or hot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.heartbeats import Heartbeat, read_all
from common.host import Host, Readings
from common.pressure import CALM_S, SAMPLE_EVERY_S, Bound, Gauge, bounds_of, unmeasured
from common.settings import GatewaySettings
from gateway.admission import within_bounds
from gateway.problems import Problem, retry_headers

log = logging.getLogger(__name__)

#: When to come back: a box that just got hot takes at least so long.
RETRY_S = CALM_S + 2 * SAMPLE_EVERY_S
#: Workers whose reasons an answer names.
MOST_NAMED = 4


class Stance(str, Enum):
    """How new jobs fare."""

    ACCEPTING = "accepting"
    #: They are accepted, and wait.
    HOLDING = "holding"
    #: They get 503.
    REFUSING = "refusing"


@dataclass(frozen=True, slots=True)
class PressureView:
    """For whoever wants to know: how new jobs fare, why, and what was measured here."""

    state: Stance
    reasons: tuple[str, ...]
    readings: Readings


class Pressure:
    """Looks at this box and at what the workers say of theirs.

    In the sandbox of its unit a gateway sees little of its box; the workers see more, and they are
    the ones who would do the work. One worker that still takes jobs is enough.
    """

    def __init__(
        self,
        bounds: list[Bound],
        heartbeats: Callable[[], Awaitable[list[Heartbeat]]],
        *,
        refuses: bool,
        host: Host | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heartbeats = heartbeats
        self._gauge = Gauge(bounds)
        self._refuses = refuses
        self._host = host or Host()
        self._clock = clock
        self._readings = self._host.read()
        if blind := unmeasured(bounds, self._readings):
            log.info("%s is left to the workers: it cannot be measured here", blind)
        self._reasons: tuple[str, ...] = ()
        #: Whether new jobs are turned away: all that the way of a job looks at.
        self.refusing = False

    @classmethod
    def over(cls, client: Redis, settings: GatewaySettings) -> Pressure:
        """As the settings say, with the heartbeats in Redis."""
        return cls(
            bounds_of(settings),
            partial(read_all, client, settings.keys),
            refuses=settings.on_pressure == "refuse",
        )

    @property
    def view(self) -> PressureView:
        """How things stand."""
        stance = Stance.ACCEPTING
        if self._reasons:
            stance = Stance.REFUSING if self.refusing else Stance.HOLDING
        return PressureView(stance, self._reasons, self._readings)

    def problem(self) -> Problem:
        """The answer to a new job."""
        return Problem(
            503,
            "under_pressure",
            f"No new jobs are taken at the moment: {'; '.join(self._reasons)}. Try again later.",
            headers=retry_headers(within_bounds(RETRY_S)),
        )

    async def run(self) -> None:
        """Look until canceled."""
        while True:
            try:
                await self.run_once()
            except Exception:  # whatever it is, the next look must come
                log.exception("pressure not measured after an unexpected fault")
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def run_once(self) -> None:
        """Look once."""
        self._readings = self._host.read()
        self._gauge.look(self._readings, self._clock())
        reasons = self._gauge.reasons or await self._reasons_of_workers()
        if bool(reasons) != bool(self._reasons):
            if reasons:
                how = "refused" if self._refuses else "accepted, and wait"
                log.warning("new jobs are %s: %s", how, "; ".join(reasons))
            else:
                log.info("new jobs are taken on again")
        self._reasons = reasons
        self.refusing = self._refuses and bool(reasons)

    async def _reasons_of_workers(self) -> tuple[str, ...]:
        """Why every worker that lives holds; nothing where one does not, or nobody is heard of."""
        try:
            beats = await self._heartbeats()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            log.debug("workers were not asked: %s", error)
            return ()
        alive = [beat for beat in beats if not beat.draining]
        if not alive or not all(beat.pressed for beat in alive):
            return ()
        return tuple(f"worker {beat.consumer}: {beat.holding_why}" for beat in alive[:MOST_NAMED])
