"""Backpressure: the drain rate of the queue, and memory and temperature of hosts."""

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

from sluice.common.errors import SluiceError
from sluice.common.jobs.protocols import JobStoreProtocol
from sluice.common.observability.heartbeats import Heartbeat, read_heartbeats
from sluice.common.process.host import (
    CALM_S,
    SAMPLE_INTERVAL_S,
    Host,
    HostReadings,
    PressureBound,
    PressureGauge,
    pressure_bounds,
    unmeasured_bounds,
)
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.http.problems import Problem, retry_headers

log = logging.getLogger(__name__)

RATE_SAMPLE_EVERY_S = 2.0
#: Weight of the newest sample.
SMOOTHING = 0.4
#: Retry-After while no rate is known, and its bounds.
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
            except Exception:  # the loop must continue
                log.exception("drain rate not sampled after an unexpected error")
            await asyncio.sleep(RATE_SAMPLE_EVERY_S)

    async def run_once(self) -> None:
        self.sample(time.monotonic(), (await self._store.counts()).ended)

    def sample(self, now: float, finished: int) -> None:
        """Record how many jobs had ended by `now`."""
        if self._last is not None:
            then, before = self._last
            # After a FLUSHALL the counter starts again at zero.
            rate = max(0, finished - before) / max(now - then, 0.001)
            self._per_second += SMOOTHING * (rate - self._per_second)
        self._last = now, finished

    def retry_after_s(self, backlog: int, limit: int) -> float:
        """Estimated seconds until the backlog is below the limit, with 20 % jitter."""
        known = self._per_second > 0.01
        return bound_retry_s((backlog - limit + 1) / self._per_second if known else DEFAULT_RETRY_S)


def bound_retry_s(seconds: float) -> float:
    """A Retry-After within its bounds, with 20 % jitter."""
    return min(max(seconds, MIN_RETRY_S), MAX_RETRY_S) * random.uniform(0.8, 1.2)


#: Retry-After under pressure: a host that exceeded a limit takes at least this long to recover.
RETRY_S = CALM_S + 2 * SAMPLE_INTERVAL_S
#: Most workers whose reasons a response names.
MOST_NAMED = 4


class PressureState(str, Enum):
    """Whether new jobs are accepted."""

    ACCEPTING = "accepting"
    #: New jobs are accepted and wait.
    HOLDING = "holding"
    #: New jobs get 503.
    REFUSING = "refusing"


@dataclass(frozen=True, slots=True)
class PressureView:
    """Whether new jobs are accepted, why not, and the readings of this host."""

    state: PressureState
    reasons: tuple[str, ...]
    readings: HostReadings


class PressureMonitor:
    """Watches the pressure on this host and that which workers report of theirs.

    In the sandbox of its systemd unit a gateway can measure little of its host. Workers can
    measure more, and they run the jobs. One worker without pressure is enough to accept jobs.
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
            log.info("%s cannot be measured here; the workers' readings are used", blind)
        self._reasons: tuple[str, ...] = ()
        #: True if new jobs are refused; the only attribute that a submission reads.
        self.refusing = False

    @classmethod
    def over(cls, client: Redis, settings: GatewaySettings) -> PressureMonitor:
        """A monitor with the limits of the settings and the heartbeats in Redis."""
        return cls(
            pressure_bounds(settings),
            partial(read_heartbeats, client, settings.keys),
            refuses=settings.on_pressure == "refuse",
        )

    @property
    def view(self) -> PressureView:
        state = PressureState.ACCEPTING
        if self._reasons:
            state = PressureState.REFUSING if self.refusing else PressureState.HOLDING
        return PressureView(state, self._reasons, self._readings)

    def problem(self) -> Problem:
        """The problem for a new job."""
        return Problem(
            503,
            "under_pressure",
            f"No new jobs are accepted at the moment: {'; '.join(self._reasons)}. Try again later.",
            headers=retry_headers(bound_retry_s(RETRY_S)),
        )

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except Exception:  # the loop must continue
                log.exception("pressure not measured after an unexpected error")
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
                log.info("new jobs are accepted again")
        self._reasons = reasons
        self.refusing = self._refuses and bool(reasons)

    async def _reasons_of_workers(self) -> tuple[str, ...]:
        """The reasons of all live workers; empty if one is without pressure or none is alive."""
        try:
            beats = await self._heartbeats()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            log.debug("heartbeats not read: %s", error)
            return ()
        alive = [beat for beat in beats if not beat.draining]
        if not alive or not all(beat.under_pressure for beat in alive):
            return ()
        return tuple(f"worker {beat.consumer}: {beat.holding_why}" for beat in alive[:MOST_NAMED])
