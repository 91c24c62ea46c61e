"""Whether new jobs are taken on: not while the box, or every worker, is short of memory or hot."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from redis.asyncio import Redis
from redis.exceptions import RedisError

from common.errors import SluiceError
from common.jobs.protocols import JobStoreProtocol
from common.observability.heartbeats import Heartbeat, read_heartbeats
from common.process.host import (
    CALM_S,
    SAMPLE_INTERVAL_S,
    Host,
    HostReadings,
    PressureBound,
    PressureGauge,
    pressure_bounds,
    unmeasured_bounds,
)
from common.redis.connection import TRANSIENT_ERRORS
from common.settings.gateway import GatewaySettings
from gateway.http.problems import Problem, retry_headers

log = logging.getLogger(__name__)

RATE_SAMPLE_EVERY_S = 2.0
#: Weight of the newest sample.
SMOOTHING = 0.4
#: Said while no rate is known yet, and as the bounds of what is ever said.
DEFAULT_RETRY_S = 5.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 300.0


class DrainRate:
    """Jobs ended per second, smoothed over the last few samples."""

    def __init__(self, store: JobStoreProtocol) -> None:
        self._store = store
        self._last: tuple[float, int] | None = None
        self._per_second = 0.0

    @property
    def per_second(self) -> float:
        return self._per_second

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except SluiceError as error:
                log.debug("drain rate not sampled: %s", error)
            except Exception:  # whatever it is, the next sample must come
                log.exception("drain rate not sampled after an unexpected fault")
            await asyncio.sleep(RATE_SAMPLE_EVERY_S)

    async def run_once(self) -> None:
        self.sample(time.monotonic(), (await self._store.counts()).ended)

    def sample(self, now: float, finished: int) -> None:
        """Note how many jobs had ended by `now`."""
        if self._last is not None:
            then, before = self._last
            # After a FLUSHALL the counter starts again below where it was.
            rate = max(0, finished - before) / max(now - then, 0.001)
            self._per_second += SMOOTHING * (rate - self._per_second)
        self._last = now, finished

    def retry_after_s(self, backlog: int, limit: int) -> float:
        """Seconds until there is likely room, spread by a fifth so that not all come at once."""
        known = self._per_second > 0.01
        return bound_retry_s((backlog - limit + 1) / self._per_second if known else DEFAULT_RETRY_S)


def bound_retry_s(seconds: float) -> float:
    """A time to come back, neither at once nor never, and spread by a fifth."""
    return min(max(seconds, MIN_RETRY_S), MAX_RETRY_S) * random.uniform(0.8, 1.2)


#: When to come back: a box that just got hot takes at least so long.
RETRY_S = CALM_S + 2 * SAMPLE_INTERVAL_S
#: Workers whose reasons an answer names.
MOST_NAMED = 4


class PressureState(str, Enum):
    """How new jobs fare."""

    ACCEPTING = "accepting"
    #: They are accepted, and wait.
    HOLDING = "holding"
    #: They get 503.
    REFUSING = "refusing"


@dataclass(frozen=True, slots=True)
class PressureView:
    """For whoever wants to know: how new jobs fare, why, and what was measured here."""

    state: PressureState
    reasons: tuple[str, ...]
    readings: HostReadings


class PressureMonitor:
    """Looks at this box and at what the workers say of theirs.

    In the sandbox of its unit a gateway sees little of its box; the workers see more, and they are
    the ones who would do the work. One worker that still takes jobs is enough.
    """

    def __init__(
        self,
        bounds: list[PressureBound],
        heartbeats: Callable[[], Awaitable[list[Heartbeat]]],
        *,
        refuses: bool,
        host: Host | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heartbeats = heartbeats
        self._gauge = PressureGauge(bounds)
        self._refuses = refuses
        self._host = host or Host()
        self._clock = clock
        self._readings = self._host.read()
        if blind := unmeasured_bounds(bounds, self._readings):
            log.info("%s is left to the workers: it cannot be measured here", blind)
        self._reasons: tuple[str, ...] = ()
        #: Whether new jobs are turned away: all that the way of a job looks at.
        self.refusing = False

    @classmethod
    def over(cls, client: Redis, settings: GatewaySettings) -> PressureMonitor:
        """As the settings say, with the heartbeats in Redis."""
        return cls(
            pressure_bounds(settings),
            partial(read_heartbeats, client, settings.keys),
            refuses=settings.on_pressure == "refuse",
        )

    @property
    def view(self) -> PressureView:
        stance = PressureState.ACCEPTING
        if self._reasons:
            stance = PressureState.REFUSING if self.refusing else PressureState.HOLDING
        return PressureView(stance, self._reasons, self._readings)

    def problem(self) -> Problem:
        """The answer to a new job."""
        return Problem(
            503,
            "under_pressure",
            f"No new jobs are taken at the moment: {'; '.join(self._reasons)}. Try again later.",
            headers=retry_headers(bound_retry_s(RETRY_S)),
        )

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except Exception:  # whatever it is, the next look must come
                log.exception("pressure not measured after an unexpected fault")
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def run_once(self) -> None:
        self._readings = self._host.read()
        self._gauge.update(self._readings, self._clock())
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
        if not alive or not all(beat.under_pressure for beat in alive):
            return ()
        return tuple(f"worker {beat.consumer}: {beat.holding_why}" for beat in alive[:MOST_NAMED])
