"""The metrics of one gateway: its own counters, and the Prometheus exposition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request

from sluice.common.process import usage as process
from sluice.common.process.usage import LoopLag
from sluice.gateway.features.bullmq.queues import BullQueues
from sluice.gateway.features.images.state import ImageServices
from sluice.gateway.http.connection_limits import ConnectionLimits
from sluice.gateway.observability.metrics import gateway, redis, workers
from sluice.gateway.observability.metrics.families import Metric, MetricFamilies, metrics_in
from sluice.gateway.observability.metrics.http import HttpMetrics, JobMetrics
from sluice.gateway.observability.snapshot.partitions import total
from sluice.gateway.observability.snapshot.redis import RedisFacts, StallTracker
from sluice.gateway.state import GatewayState

#: Every metric that `/metrics` may contain; the docs list them.
METRICS: Final[tuple[Metric, ...]] = tuple(
    metric for module in (gateway, redis, workers) for metric in metrics_in(module)
)


class MetricSources(NamedTuple):
    """The objects that one exposition reads from."""

    state: GatewayState
    images: ImageServices
    bullmq: BullQueues
    #: None if Redis did not answer in time.
    facts: RedisFacts | None


class GatewayMetrics(Collector):
    """Counters and collector of one app. Created with the app, before the objects it reads from."""

    def __init__(self, connection_limits: ConnectionLimits | None = None) -> None:
        """`connection_limits`: counters of the server for connections that it rejects itself."""
        self.http = HttpMetrics()
        self.jobs = JobMetrics()
        self.loop_lag = LoopLag()
        self.stall_tracker = StallTracker()
        self.started_s = time.time()
        self.connection_limits = connection_limits
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._expose_lock = asyncio.Lock()
        self._exposed: MetricSources | None = None

    async def expose(self, accept: str, sources: MetricSources) -> tuple[bytes, str]:
        """The exposition in the format that the client prefers, and its media type.

        Encoding hundreds of series takes some milliseconds. It runs in a thread, so that requests
        and streams do not wait; the thread only reads. One exposition runs at a time, so that many
        scrapes use at most one core.
        """
        encode, media_type = choose_encoder(accept)
        async with self._expose_lock:
            self._exposed = sources
            try:
                return await asyncio.to_thread(encode, self.registry), media_type
            finally:
                self._exposed = None

    def collect(self) -> Iterable[Family]:
        """Every metric family. Called by the registry during an exposition."""
        if self._exposed is None:
            return ()
        state, images, bullmq, facts = self._exposed
        families = MetricFamilies()
        usage, lag_s = process.process_usage(), self.loop_lag.worst_s
        gateway.add_process(families, usage, self.started_s, lag_s, up=facts is not None)
        limits = self.connection_limits
        gateway.add_http(families, self.http, {} if limits is None else limits.refused)
        gateway.add_jobs(families, self.jobs.submitted, self.jobs.deduplicated)
        cut_off = 0 if limits is None else limits.stalled
        gateway.add_streams(families, state.streams.clients, state.hub.metrics, cut_off)
        gateway.add_images(families, images.hub.clients, images.metrics)
        gateway.add_bullmq(families, bullmq)
        gateway.add_backpressure(
            families,
            state.settings.backpressure_max_backlog,
            state.drain_rate.per_second,
            state.pressure.view.state,
            _in_use(state),
        )
        if facts is not None:
            redis.add_redis(families, facts)
            workers.add_workers(families, facts.workers)
            redis.add_limits(families, facts)
        return families


def _in_use(state: GatewayState) -> int | None:
    pools = {id(line.client): line.client.connection_pool for line in state.lines}
    found = [getattr(pool, "_in_use_connections", None) for pool in pools.values()]
    return total([None if connections is None else len(connections) for connections in found])


def metrics_of(request: Request) -> GatewayMetrics:
    metrics: GatewayMetrics = request.app.state.metrics
    return metrics
