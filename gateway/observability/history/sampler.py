"""Keeps the history: of all gateways, one at a time takes a sample a second.

Whoever keeps it holds a place in Redis that runs out by itself, so that another gateway goes on
within seconds of its death. The place is renewed with each sample; and since a sample's id is its
time, two who both believe to be the keeper still write each time once.
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

from common import codec
from common.contracts.stats import ONE_SECOND, RESOLUTIONS, GatewayField, Resolution, StatsKeys
from common.errors import SluiceError
from common.jobs.store import read_reply
from gateway.observability.history.collector import Baseline, SampleCollector, restore_baseline
from gateway.observability.history.rings import Rings, SamplerLease, WriteOutcome
from gateway.observability.history.samples import Sample, merge_samples
from gateway.state import GatewayState

log = logging.getLogger(__name__)

#: How long the place is kept for a keeper that says nothing.
LEASE_MS: Final = 3000
#: A sample is taken so long after its second has ended.
SAMPLE_DELAY_MS: Final = 20
#: How often a gateway says of itself that it lives, at least.
ANNOUNCE_EVERY_S: Final = 5.0
#: How long all of that is kept after the last word of any.
ANNOUNCEMENT_TTL_S: Final = 3600
#: How long samples of the future are kept: a machine that was switched on without a clock of its
#: own is behind until it has asked for the time, and would forget everything.
FUTURE_KEPT_S: Final = 120.0
#: How long a stopping gateway tries to make place for another.
RELEASE_TIMEOUT_S: Final = 1.0


class HistorySampler:
    """One gateway's part in it."""

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
        #: Whether the place was ours when it was last looked at.
        self.holds_lease = False
        #: None where it has to be found out.
        self._baseline: Baseline | None = None
        #: Up to when longer samples were made; 0 where that has to be found out.
        self._rolled_ms = 0
        #: How far the clock of Redis is ahead.
        self._ahead_ms = 0.0
        self._announced: tuple[int, float] | None = None
        #: Since when there are samples of the future.
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
        """Keep the history, or stand by, until canceled; trouble is left to the next second."""
        while True:
            try:
                await self.run_once()
            except SluiceError as error:
                log.debug("no sample this time: %s", error)
            except Exception:  # whatever it is, the next one must come
                log.exception("no sample this time after an unexpected fault")
            await asyncio.sleep(self._until_next_s())

    async def run_once(self) -> Sample | None:
        """Take and write a sample, if that is ours to do; returns what was written."""
        await self._announce()
        if not self.holds_lease:
            self.holds_lease = await self._rings.acquire(self.lease)
            if not self.holds_lease:
                return None
            log.info("this gateway keeps the history now")
            self._baseline, self._rolled_ms = None, 0
        baseline, self._baseline = self._baseline, None  # unknown again, should anything go wrong
        begins = baseline is None
        if baseline is None:
            baseline = await self._begin()
        taken = await self._collector.collect(baseline)
        self._ahead_ms = taken.now_ms - time.time() * 1000
        seen = taken.baseline.seen.encode() if taken.has_worker_changes or begins else ""
        written = await self._rings.append(ONE_SECOND, taken.sample, self.lease, seen)
        if written is WriteOutcome.LOST:
            log.info("another gateway keeps the history now")
            self.holds_lease = False
            return None
        if written is WriteOutcome.TAKEN:
            self._baseline = baseline
            await self._check_future(taken.now_ms)
            return None
        self._baseline = taken.baseline
        if self._behind_since is not None:
            await self._check_future(taken.now_ms)
        await self.roll_up(taken.sample.ts + ONE_SECOND.step_ms)
        if taken.stale_gateways:
            await read_reply(self._client.hdel(self._rings.keys.gateways, *taken.stale_gateways))
        return taken.sample

    async def release(self) -> None:
        """A gateway that stops in good order makes place for another at once."""
        try:
            await asyncio.wait_for(self._release(), RELEASE_TIMEOUT_S)
        except (asyncio.TimeoutError, SluiceError) as error:
            log.debug("the keeper's place runs out by itself: %r", error)

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
        """A clock that went back: wait for the time of the last sample, or forget those after."""
        newest = [(each, await self._rings.newest(each)) for each in RESOLUTIONS]
        ahead = [each for each, last in newest if last is not None and last.ts > now_ms]
        if not ahead:
            self._behind_since = None
            return
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
            log.warning("the clock went back; no samples until it has caught up, or for a while")
        if now - self._behind_since < FUTURE_KEPT_S:
            return
        log.warning("the clock stays behind; samples of the future are forgotten")
        for resolution in ahead:
            await self._rings.rewind(resolution, self.lease, now_ms)
        self._behind_since = None

    async def roll_up(self, now_ms: int) -> None:
        """Make longer samples of what is complete: whenever a boundary was passed, and at the
        beginning also what a keeper before us left undone."""
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
        """Say that this gateway lives, and how much it has to do, where that has changed."""
        clients, now = self._sse_clients(), time.monotonic()
        if self._announced is not None:
            before, at = self._announced
            if before == clients and now - at < ANNOUNCE_EVERY_S:
                return
        said = {
            GatewayField.SEEN_MS: int(time.time() * 1000 + self._ahead_ms),
            GatewayField.SSE_CLIENTS: clients,
            GatewayField.LOOP_LAG_MS: int(self._loop_lag_s() * 1000),
        }
        key = self._rings.keys.gateways
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, self.lease.token, codec.dumps(said).decode())
            pipe.expire(key, ANNOUNCEMENT_TTL_S)
            # Where something else lies there, nobody is told, and samples are taken all the same.
            await read_reply(pipe.execute(raise_on_error=False))
        self._announced = clients, now

    def _until_next_s(self) -> float:
        """Until just after the next whole second, by the clock of Redis."""
        now_ms = time.time() * 1000 + self._ahead_ms
        return ((SAMPLE_DELAY_MS - now_ms) % ONE_SECOND.step_ms or ONE_SECOND.step_ms) / 1000
