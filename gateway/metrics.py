"""The numbers of one gateway: what it counts itself, and what it tells Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request

from common import process
from common.contracts.jobs import TASKS
from common.loop_lag import LoopLag
from gateway import metrics_export as export
from gateway import metrics_names as names
from gateway.door import Door
from gateway.metrics_http import HttpNumbers
from gateway.metrics_redis import RedisFacts, Standstill
from gateway.partition_facts import total
from gateway.pressure import Stance
from gateway.state import GatewayState

_PRESSURE = {Stance.ACCEPTING: 0, Stance.HOLDING: 1, Stance.REFUSING: 2}


class JobNumbers:
    """Jobs that this gateway accepted, by task: the contract's tasks, and no other."""

    def __init__(self) -> None:
        self.submitted = dict.fromkeys(TASKS, 0)
        self.deduplicated = dict.fromkeys(TASKS, 0)

    def accepted(self, task: str, *, replayed: bool) -> None:
        """A request was answered with a job."""
        if replayed:
            self.deduplicated[task] += 1
        else:
            self.submitted[task] += 1


class Metrics(Collector):
    """Made with the app; lives as long as the app does, longer than what it reads from."""

    def __init__(self) -> None:
        self.http = HttpNumbers()
        self.jobs = JobNumbers()
        self.loop_lag = LoopLag()
        self.standstill = Standstill()
        self.started_s = time.time()
        #: Set by who serves the app: what is turned away or cut off before it comes here.
        self.door: Door | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._exposing = asyncio.Lock()
        self._shown: tuple[GatewayState, RedisFacts | None] | None = None

    async def expose(
        self, accept: str, state: GatewayState, facts: RedisFacts | None
    ) -> tuple[bytes, str]:
        """The exposition that the client prefers, and its media type.

        Hundreds of series take some milliseconds, which requests and streams are not to wait for:
        hence a thread. It only looks; one at a time, so that a flood of scrapes takes one core.
        """
        encode, media_type = choose_encoder(accept)
        async with self._exposing:
            self._shown = state, facts
            try:
                return await asyncio.to_thread(encode, self.registry), media_type
            finally:
                self._shown = None

    def collect(self) -> Iterable[Family]:
        """Every family; for the registry, while it is exposed."""
        if self._shown is None:
            return ()
        state, facts = self._shown
        families = export.Families()
        families.add(names.UP, int(facts is not None))
        usage = process.usage()
        export.of_process(families, usage, self.started_s, self.loop_lag.worst_s)
        door = self.door
        export.of_http(families, self.http, {} if door is None else door.refused)
        for task, count in self.jobs.submitted.items():
            families.add(names.SUBMITTED, count, task)
            families.add(names.DEDUPLICATED, self.jobs.deduplicated[task], task)
        cut_off = 0 if door is None else door.stalled
        export.of_streams(families, state.stream_clients, state.hub.numbers, cut_off)
        export.of_images(families, state.stages.clients, state.image_numbers)
        export.of_bullmq(families, state.bullmq)
        families.add(names.QUEUE_LIMIT, state.settings.backpressure_max_backlog)
        families.add(names.DRAIN_RATE, state.drain_rate.per_second)
        families.add(names.PRESSURE, _PRESSURE[state.pressure.view.state])
        families.add(names.REDIS_POOL, _in_use(state))
        if facts is not None:
            export.of_redis(families, facts)
            export.of_workers(families, facts.workers)
            export.of_limits(families, facts)
        return families


def _in_use(state: GatewayState) -> int | None:
    pools = {id(line.client): line.client.connection_pool for line in state.lines}
    found = [getattr(pool, "_in_use_connections", None) for pool in pools.values()]
    return total([None if connections is None else len(connections) for connections in found])


def metrics_of(request: Request) -> Metrics:
    """The numbers of the app behind a request."""
    metrics: Metrics = request.app.state.metrics
    return metrics
