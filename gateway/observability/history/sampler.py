"""Samples the history: one gateway at a time takes a sample per second.

The sampling gateway holds a lease in Redis that expires by itself, so another gateway takes over
within seconds if it dies. Each sample renews the lease. The id of a sample is its time, so even two
gateways that both believe they hold the lease write each sample only once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable
from typing import Final

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.stats import (
    ONE_SECOND,
    RESOLUTIONS,
    GatewayField,
    Resolution,
    StatsKeys,
)
from sluice.common.errors import SluiceError
from sluice.common.jobs.store import read_reply
from sluice.gateway.observability.history.collector import (
    Baseline,
    SampleCollector,
    restore_baseline,
)
from sluice.gateway.observability.history.rings import Rings, SamplerLease, WriteOutcome
from sluice.gateway.observability.history.samples import Sample, merge_samples
from sluice.gateway.state import GatewayState

log = logging.getLogger(__name__)

#: Lifetime of the lease without renewal, in milliseconds.
LEASE_MS: Final = 3000
#: Delay between the end of a second and its sample, in milliseconds.
SAMPLE_DELAY_MS: Final = 20
#: Maximum seconds between two announcements of a gateway.
ANNOUNCE_EVERY_S: Final = 5.0
#: Seconds after which the announcements of all gateways expire.
ANNOUNCEMENT_TTL_S: Final = 3600
#: Seconds for which samples with a future time are kept. A machine without a real-time clock is
#: behind after power-on until it has synchronised its time, and would delete the whole history.
FUTURE_KEPT_S: Final = 120.0
#: Seconds for which a stopping gateway tries to release the lease.
RELEASE_TIMEOUT_S: Final = 1.0


class HistorySampler:
    """Takes samples while this gateway holds the lease, and waits for the lease otherwise."""

    def __init__(
        self,
        client: Redis,
        rings: Rings,
        collector: SampleCollector,
        sse_clients: Callable[[], int],
        loop_lag_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._rings = rings
        self._collector = collector
        self._sse_clients = sse_clients
        self._loop_lag_s = loop_lag_s
        self.lease = SamplerLease(uuid.uuid4().hex, LEASE_MS)
        #: True if this gateway held the lease at the last check.
        self.holds_lease = False
        #: Counters at the last sample; None if they must be read from Redis.
        self._baseline: Baseline | None = None
        #: Time of the last roll-up, in Unix milliseconds; 0 if unknown.
        self._rolled_ms = 0
        #: Milliseconds by which the clock of Redis is ahead.
        self._ahead_ms = 0.0
        self._announced: tuple[int, float] | None = None
        #: Monotonic time since which Redis holds samples with a future time.
        self._behind_since: float | None = None

    @classmethod
    def over(cls, state: GatewayState, loop_lag_s: Callable[[], float]) -> HistorySampler:
        settings, client = state.settings, state.client
        collector = SampleCollector(
            state.lines,
            settings.worker_group,
            lambda: state.pressure.view.readings,
        )
        rings = Rings(client, StatsKeys(settings.keys.queue))
        return cls(client, rings, collector, lambda: state.streams.clients, loop_lag_s)

    async def run(self) -> None:
        """Take a sample per second, or wait for the lease, until cancelled; errors are retried."""
        while True:
            try:
                await self.run_once()
            except SluiceError as error:
                log.debug("history: sample failed, retrying: %s", error)
            except Exception:  # sampling must survive any error
                log.exception("history: sample failed with an unexpected error, retrying")
            await asyncio.sleep(self._until_next_s())

    async def run_once(self) -> Sample | None:
        """Take and write a sample if this gateway holds the lease; returns the written sample."""
        await self._announce()
        if not self.holds_lease:
            self.holds_lease = await self._rings.acquire(self.lease)
            if not self.holds_lease:
                return None
            log.info("history: this gateway takes the samples from now on")
            self._baseline, self._rolled_ms = None, 0
        baseline, self._baseline = self._baseline, None  # read from Redis again after an error
        starting = baseline is None
        if baseline is None:
            baseline = await self._begin()
        snapshot = await self._collector.collect(baseline)
        self._ahead_ms = snapshot.now_ms - time.time() * 1000
        seen = snapshot.baseline.seen.encode() if snapshot.has_worker_changes or starting else ""
        written = await self._rings.append(ONE_SECOND, snapshot.sample, self.lease, seen)
        if written is WriteOutcome.LOST:
            log.info("history: another gateway takes the samples from now on")
            self.holds_lease = False
            return None
        if written is WriteOutcome.TAKEN:
            self._baseline = baseline
            await self._check_future(snapshot.now_ms)
            return None
        self._baseline = snapshot.baseline
        if self._behind_since is not None:
            await self._check_future(snapshot.now_ms)
        await self.roll_up(snapshot.sample.ts + ONE_SECOND.step_ms)
        if snapshot.stale_gateways:
            await read_reply(self._client.hdel(self._rings.keys.gateways, *snapshot.stale_gateways))
        return snapshot.sample

    async def release(self) -> None:
        """Release the lease, so that another gateway can take over at once."""
        try:
            await asyncio.wait_for(self._release(), RELEASE_TIMEOUT_S)
        except (asyncio.TimeoutError, SluiceError) as error:
            log.debug("history: lease not released, it expires by itself: %r", error)

    async def _release(self) -> None:
        if self.holds_lease:
            await self._rings.release(self.lease)
        await read_reply(self._client.hdel(self._rings.keys.gateways, self.lease.token))

    async def _begin(self) -> Baseline:
        seconds, micros = await read_reply(self._client.time())
        now_ms = int(seconds * 1000 + micros // 1000)
        await self._check_future(now_ms)
        last = await self._rings.newest(ONE_SECOND)
        return restore_baseline(last, await self._rings.seen(), now_ms)

    async def _check_future(self, now_ms: int) -> None:
        """After the clock was set back: wait until it reaches the last sample, or delete samples
        that are still in the future after FUTURE_KEPT_S."""
        newest = [(each, await self._rings.newest(each)) for each in RESOLUTIONS]
        ahead = [each for each, last in newest if last is not None and last.ts > now_ms]
        if not ahead:
            self._behind_since = None
            return
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
            log.warning(
                "history: the clock of Redis was set back; sampling is suspended until it catches "
                "up, or for %.0f s",
                FUTURE_KEPT_S,
            )
        if now - self._behind_since < FUTURE_KEPT_S:
            return
        log.warning("history: the clock of Redis stays behind; samples in the future are deleted")
        for resolution in ahead:
            await self._rings.rewind(resolution, self.lease, now_ms)
        self._behind_since = None

    async def roll_up(self, now_ms: int) -> None:
        """Merge complete samples into those of the next resolution, whenever a boundary is passed.

        The first call also merges the samples that an earlier gateway left unmerged.
        """
        before, self._rolled_ms = self._rolled_ms, now_ms
        for fine, coarse in itertools.pairwise(RESOLUTIONS):
            if before // coarse.step_ms != now_ms // coarse.step_ms:
                await self._complete(fine, coarse, now_ms)

    async def _complete(self, fine: Resolution, coarse: Resolution, now_ms: int) -> None:
        newest = await self._rings.newest(coarse)
        begin = 0 if newest is None else newest.ts + coarse.step_ms
        end = now_ms // coarse.step_ms * coarse.step_ms
        parts: dict[int, list[Sample]] = {}
        for sample in await self._rings.after(fine, begin - 1, end - 1):
            parts.setdefault(sample.ts // coarse.step_ms * coarse.step_ms, []).append(sample)
        for ts, samples in sorted(parts.items()):
            if (
                await self._rings.append(coarse, merge_samples(ts, samples), self.lease)
                is WriteOutcome.LOST
            ):
                return

    async def _announce(self) -> None:
        """Publish that this gateway is live and its load, if the load changed or it is time to."""
        clients, now = self._sse_clients(), time.monotonic()
        if self._announced is not None:
            before, at = self._announced
            if before == clients and now - at < ANNOUNCE_EVERY_S:
                return
        announcement = {
            GatewayField.SEEN_MS: int(time.time() * 1000 + self._ahead_ms),
            GatewayField.SSE_CLIENTS: clients,
            GatewayField.LOOP_LAG_MS: int(self._loop_lag_s() * 1000),
        }
        key = self._rings.keys.gateways
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, self.lease.token, codec.dumps(announcement).decode())
            pipe.expire(key, ANNOUNCEMENT_TTL_S)
            # If the key has another type, gateways are not announced, but samples are still taken.
            await read_reply(pipe.execute(raise_on_error=False))
        self._announced = clients, now

    def _until_next_s(self) -> float:
        """Seconds until just after the next full second of the Redis clock."""
        now_ms = time.time() * 1000 + self._ahead_ms
        return ((SAMPLE_DELAY_MS - now_ms) % ONE_SECOND.step_ms or ONE_SECOND.step_ms) / 1000
