"""Starts and stops the parts of a gateway: connections, core state, features."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from sluice.common.contracts.access import AccessKeys
from sluice.common.jobs.audit.auditor import Auditor, build_auditor
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.jobs.pause import PauseStore
from sluice.common.jobs.protocols import JobStoreProtocol, QueueProtocol
from sluice.common.jobs.queue import Promoter
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.observability import tracing_setup
from sluice.common.process import runtime
from sluice.common.redis.addresses import url_for_tag
from sluice.common.redis.batching import MAX_CALLS, ScriptBatcher
from sluice.common.redis.partitions import HOME_PARTITION
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.redis.replication import with_replication
from sluice.common.redis.scripts import BatchScript
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.auth.access import Access
from sluice.gateway.events.hub import EventHub
from sluice.gateway.events.slots import StreamSlots
from sluice.gateway.feature import Feature, FeatureContext, background_tasks
from sluice.gateway.jobs.backpressure import DrainRate, PressureMonitor
from sluice.gateway.jobs.partitioned_store import build_stores
from sluice.gateway.state import GatewayState, StreamHubs

#: How long a request is retried while Redis is unavailable, before it gets a 503.
REDIS_RETRY_S: Final = 2.5
#: Connections for single reads; writes and streams have their own.
READ_CONNECTIONS: Final = 4


class Connections:
    """Shared by the core and the features; connects when a connection is first used."""

    def __init__(self, settings: GatewaySettings, url: str) -> None:
        partitions, lanes = settings.partitions, settings.lane_names
        self._home = settings.keys
        #: The gateway's Redis.
        self.url = url
        self._retry_s = REDIS_RETRY_S + MAX_CALLS * settings.wait_s
        self._durable = partial(
            with_replication, replicas=settings.wait_replicas, timeout_ms=settings.wait_timeout_ms
        )
        # Partitions on the same server share its connections.
        urls = [url_for_tag(url, keys.tag) for keys in partitions.keys]
        self._home_url = urls[HOME_PARTITION]
        self._read = {each: PipelinedConnection(each) for each in urls}
        block_s = MAX_CALLS * settings.wait_s
        self._write = {each: PipelinedConnection(each, block_s=block_s) for each in urls}
        self._others: list[PipelinedConnection] = []
        #: For single reads.
        self.partition_clients = PartitionClients.connect(
            partitions, url, connections=READ_CONNECTIONS, lanes=lanes
        )
        #: For streams: the connection to each partition, in the order of their numbers.
        self.readers = [self._read[each] for each in urls]
        #: Writes to each partition, and to each of its lanes.
        self.batchers = [
            ScriptBatcher(self._durable(self._write[each], keys), keys, CORE_SCRIPT, self._retry_s)
            for each, keys in zip(urls, partitions.keys)
        ]
        self.lane_batchers = [
            {
                lane: ScriptBatcher(
                    self._durable(self._write[each], keys),
                    keys.for_lane(lane),
                    CORE_SCRIPT,
                    self._retry_s,
                )
                for lane in lanes
            }
            for each, keys in zip(urls, partitions.keys)
        ]
        self._feature_batchers: list[ScriptBatcher] = []

    def script_batcher(self, script: BatchScript) -> ScriptBatcher:
        """Runs a script on the home partition."""
        connection = self._durable(self._write[self._home_url], self._home)
        batcher = ScriptBatcher(connection, self._home, script, self._retry_s)
        self._feature_batchers.append(batcher)
        return batcher

    def connect(self, url: str = "", *, block_s: float = 0.0) -> PipelinedConnection:
        """A connection to a URL, or to the home partition.

        `block_s`: how long its commands may block.
        """
        return self._add(PipelinedConnection(url or self._home_url, block_s=block_s))

    def listen(self, on_message: Callable[[bytes], None]) -> PipelinedConnection:
        """A connection to the home partition for messages that Redis publishes."""
        return self._add(PipelinedConnection(self._home_url, on_message=on_message))

    def _add(self, connection: PipelinedConnection) -> PipelinedConnection:
        self._others.append(connection)
        return connection

    async def close(self) -> None:
        lanes = [batcher for each in self.lane_batchers for batcher in each.values()]
        for batcher in (*self.batchers, *lanes, *self._feature_batchers):
            await batcher.close()
        for connection in (*self._write.values(), *self._read.values(), *self._others):
            await connection.aclose()
        await self.partition_clients.aclose()


#: How long a client may take to read the shutdown notice of its stream.
STREAM_CLOSE_S: Final = 2.0


@asynccontextmanager
async def run_gateway(
    app: FastAPI, settings: GatewaySettings, features: Sequence[Feature[Any]]
) -> AsyncIterator[None]:
    """Run everything that the routes of an app need, for the duration of the block."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_redis_url(settings))
        tracing_setup.start(settings.service)
        stack.callback(tracing_setup.stop)
        loop_lag = app.state.metrics.loop_lag
        await stack.enter_async_context(background_tasks(loop_lag.run()))
        connections = Connections(settings, url)
        stack.push_async_callback(connections.close)
        state = await stack.enter_async_context(open_state(settings, connections))
        app.state.gateway = state
        context = FeatureContext(state, connections, loop_lag, stack)
        states = build_features(app, context, features)
        for feature in features:
            if feature.background is not None:
                running = feature.background(context, states.get(feature.state_name))
                await stack.enter_async_context(running)
        _close_streams_on_signal(state.streams)
        yield


@asynccontextmanager
async def _redis_url(settings: GatewaySettings) -> AsyncIterator[str]:
    """The URL of the Redis to use; an embedded one is started and stopped in a thread."""
    loop = asyncio.get_running_loop()
    shared = runtime.redis_url(settings)
    url = await loop.run_in_executor(None, shared.__enter__)
    try:
        yield url
    finally:
        await loop.run_in_executor(None, shared.__exit__, None, None, None)


@asynccontextmanager
async def open_state(
    settings: GatewaySettings, connections: Connections
) -> AsyncIterator[GatewayState]:
    """The core state with its background tasks."""
    clients = connections.partition_clients
    store, queue = build_stores(clients, connections.batchers, connections.lane_batchers)
    streams = StreamHubs()
    hub = EventHub(
        connections.readers,
        connections.listen(streams.on_hint),
        settings.partitions,
        settings.sse_heartbeat_s,
        settings.sse_max_life_s,
    )
    auditor = build_auditor(clients, settings.worker_group)
    state = build_state(settings, store, queue, hub, streams, auditor, clients)
    hub.start()
    promoters = [Promoter(each).run() for each in queue.queues]
    try:
        async with background_tasks(state.drain_rate.run(), state.pressure.run(), *promoters):
            yield state
    finally:
        await streams.stop()
        await state.access.close()


def build_state(
    settings: GatewaySettings,
    store: JobStoreProtocol,
    queue: QueueProtocol,
    hub: EventHub,
    streams: StreamHubs,
    auditor: Auditor,
    clients: PartitionClients,
) -> GatewayState:
    """The core state; the hub joins `streams`."""
    streams.add(hub, hub.on_hint)
    home, share = clients.home.client, clients.partitions.limit_per_partition
    return GatewayState(
        settings=settings,
        store=store,
        hub=hub,
        streams=streams,
        stream_slots=StreamSlots(settings.sse_max_clients),
        drain_rate=DrainRate(store),
        queue=queue,
        auditor=auditor,
        lines=clients,
        client=home,
        backlog_limit=share(settings.backpressure_max_backlog),
        schedule_limit=share(settings.max_scheduled),
        access=Access.over(home, store, queue, AccessKeys(settings.keys.tag)),
        pressure=PressureMonitor.over(home, settings),
        pauses=PauseStore(home, settings.keys),
    )


def build_features(
    app: FastAPI, context: FeatureContext, features: Sequence[Feature[Any]]
) -> dict[str, Any]:
    """Build the state of each feature and put it on the app, for the feature's accessor."""
    states = {
        feature.state_name: feature.build(context)
        for feature in features
        if feature.build is not None
    }
    for name, state in states.items():
        setattr(app.state, name, state)
    return states


def _close_streams_on_signal(streams: StreamHubs) -> None:
    """End event streams as soon as the server receives a stop signal.

    The server waits for open connections before it shuts the app down, so the app's shutdown
    would be too late. sse-starlette's own handling interrupts streams without a notice.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    loop = asyncio.get_running_loop()

    def cut_off() -> None:
        AppStatus.should_exit = True  # for clients that do not read the notice

    def chain(number: signal.Signals) -> None:
        previous = signal.getsignal(number)

        def on_signal(signum: int, frame: FrameType | None) -> Any:
            loop.call_soon_threadsafe(streams.close_streams)
            loop.call_soon_threadsafe(loop.call_later, STREAM_CLOSE_S, cut_off)
            if callable(previous):
                previous(signum, frame)

        signal.signal(number, on_signal)

    chain(signal.SIGTERM)
    chain(signal.SIGINT)
