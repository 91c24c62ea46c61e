"""A gateway without a network or a lifespan, on the Redis backend of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.audit.auditor import AuditPace, build_auditor
from sluice.common.jobs.partition_clients import PartitionClient, PartitionClients
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.process.usage import LoopLag
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import BatchScript
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import FEATURES, create_app
from sluice.gateway.dashboard.activity.feed import HistoryServices
from sluice.gateway.events.hub import EventHub
from sluice.gateway.feature import FeatureContext
from sluice.gateway.features.bullmq.queues import BullQueues
from sluice.gateway.features.images.state import ImageServices
from sluice.gateway.features.workflows.lookup import WorkflowServices
from sluice.gateway.jobs.partitioned_store import build_stores
from sluice.gateway.lifespan import build_features, build_state
from sluice.gateway.state import GatewayState, StreamHubs
from tests.support.gateway.asgi import Answer, Client, Exchange
from tests.support.gateway.sse import Block
from tests.support.servers import Backend

CHAT = {"task": "chat", "payload": {"text": "hello"}}
#: Retry time of the batchers: long, because Redis may be slow on a busy machine.
TIMEOUT_S = 30.0
#: Retry time while Redis is unavailable in a test.
SHORT_S = 0.3


@contextmanager
def short_retries(*batchers: ScriptBatcher) -> Iterator[None]:
    """Let these batchers fail soon; calls that must succeed belong before or after."""
    usual = [batcher._retry_for_s for batcher in batchers]
    for batcher in batchers:
        batcher._retry_for_s = SHORT_S
        if batcher._give_up_timer is not None:  # was set for the long time
            batcher._give_up_timer.cancel()
            batcher._give_up_timer = None
    try:
        yield
    finally:
        for batcher, retry_for_s in zip(batchers, usual):
            batcher._retry_for_s = retry_for_s


@dataclass
class Gateway:
    """A running gateway, and another connection to its Redis."""

    app: FastAPI
    client: Client
    state: GatewayState
    redis: Any
    keys: JobKeys
    #: The connection that the hub reads with.
    reading: Any
    #: All script batchers, first those of the partitions by number.
    batchers: Sequence[ScriptBatcher]
    stack: AsyncExitStack

    @property
    def hub(self) -> EventHub:
        return self.state.hub

    @property
    def images(self) -> ImageServices:
        return self.app.state.images

    @property
    def workflows(self) -> WorkflowServices:
        return self.app.state.workflows

    @property
    def bullmq(self) -> BullQueues:
        return self.app.state.bullmq

    @property
    def history(self) -> HistoryServices:
        return self.app.state.history

    def keys_of(self, job_id: str) -> JobKeys:
        """The keys of the partition that a job belongs to."""
        return self.state.lines.for_job(job_id).keys

    async def queue_length(self) -> int:
        """Number of messages in the queues of all partitions."""
        return sum([await line.client.xlen(line.keys.queue) for line in self.state.lines])

    async def create(self, body: object = CHAT, **headers: str) -> str:
        """Create a job over HTTP; returns its id."""
        answer = await self.client.post(body, headers)
        assert answer.status == 202, answer
        return answer.json()["job_id"]

    async def emit(
        self, job_id: str, type: str, data: bytes | object = None, *, hint: bool = True
    ) -> str:
        """An event as any worker of the contract writes it. `hint`: as Sluice's workers publish."""
        raw = data if isinstance(data, bytes) else json.dumps(data or {}).encode()
        fields: Any = {"type": type, "ts": "1760000000000", "step": "test.step", "data": raw}
        keys = self.keys_of(job_id)
        event_id: bytes = await self.redis.xadd(keys.events(job_id), fields)
        if hint:
            await self.redis.publish(keys.hints, job_id)
        return event_id.decode()

    async def finish(self, job_id: str, status: str = "done", *, hint: bool = True) -> str:
        """The end of a job as the contract orders it: hash first, terminal event second."""
        fields = {"status": status, "updated_ts": "1760000000001", "result": '{"text":"hi"}'}
        keys = self.keys_of(job_id)
        await self.redis.hset(keys.job(job_id), mapping=fields)
        return await self.emit(job_id, status, {"ms": 1}, hint=hint)

    async def heartbeat(self, *beats: Heartbeat) -> None:
        """Store heartbeats as workers do."""
        for beat in beats:
            await self.redis.zadd(self.keys.workers, {beat.consumer: beat.seen_ms})
            await self.redis.set(self.keys.worker(beat.consumer), beat.to_json())

    async def watched(self) -> tuple[str, Exchange]:
        """A new job, and its stream after the first event."""
        job_id = await self.create()
        stream = await self.client.watch(job_id)
        await stream.event("queued")
        return job_id, stream

    async def watch_all(self, job_id: str, last_event_id: str | None = None) -> list[Block]:
        """All events of a stream up to its end, without the hello."""
        headers = {} if last_event_id is None else {"last-event-id": last_event_id}
        stream = await self.client.watch(job_id, headers)
        assert stream.status == 200
        hello, *events = await stream.rest()
        assert hello.event == "hello"
        return events

    async def snapshot(self) -> dict[bytes, Any]:
        """Every key with its value, to prove that nothing was written except to the audit log."""
        # Valkey may dump the same hash or set in another order each time.
        unordered = {b"hash": self.redis.hgetall, b"set": self.redis.smembers}
        found: dict[bytes, Any] = {}
        for key in await self.redis.keys("*"):
            if not key.endswith((b"access:trail", b"access:used")):
                kind = await self.redis.type(key)
                found[key] = await unordered.get(kind, self.redis.dump)(key)
        return found

    async def close(self) -> None:
        await self.client.close()
        await self.state.streams.stop()
        await self.stack.aclose()
        await self.state.access.close()
        for batcher in self.batchers:
            await batcher.close()


class BackendConnections:
    """Connections of features to the backend of the test, for any URL."""

    url = ""

    def __init__(self, backend: Backend, keys: JobKeys) -> None:
        self._backend = backend
        self._keys = keys
        self.batchers: list[ScriptBatcher] = []

    def script_batcher(self, script: BatchScript) -> ScriptBatcher:
        self.batchers.append(ScriptBatcher(self._backend.wire(), self._keys, script, TIMEOUT_S))
        return self.batchers[-1]

    def connect(self, url: str = "", *, block_s: float = 0.0) -> CommandClient:
        return self._backend.wire()


def make_gateway(
    backend: Backend, *, others: Mapping[int, Backend] | None = None, **settings: Any
) -> Gateway:
    """Build what `sluice.gateway.lifespan` builds, on a test's backend, without background tasks.

    `others`: backends with one partition each; `backend` has the others.
    """
    config = GatewaySettings(**settings)
    keys, partitions = config.keys, config.partitions
    backends = [(others or {}).get(number, backend) for number in range(partitions.count)]
    clients = {server: server.client() for server in dict.fromkeys(backends)}
    writing, reads = ({server: server.wire() for server in clients} for _ in range(2))
    lines = PartitionClients(
        partitions,
        tuple(
            PartitionClient(number, keys, clients[server], config.lane_names)
            for number, (keys, server) in enumerate(zip(partitions.keys, backends))
        ),
    )
    batchers = [
        ScriptBatcher(writing[server], line.keys, CORE_SCRIPT, TIMEOUT_S)
        for server, line in zip(backends, lines)
    ]
    lanes = [
        {
            lane: ScriptBatcher(writing[server], line.keys.for_lane(lane), CORE_SCRIPT, TIMEOUT_S)
            for lane in config.lane_names
        }
        for server, line in zip(backends, lines)
    ]
    store, queue = build_stores(lines, batchers, lanes)
    reading = reads[backend]
    streams = StreamHubs()
    listening = backend.wire(on_message=streams.on_hint)
    limits = config.sse_heartbeat_s, config.sse_max_life_s
    hub = EventHub([reads[server] for server in backends], listening, partitions, *limits)
    app = create_app(config)
    auditor = build_auditor(
        lines, config.worker_group, AuditPace(pause_s=0.0, recheck_delay_s=0.02)
    )
    state = build_state(config, store, queue, hub, streams, auditor, lines)
    app.state.gateway = state
    hub.start()
    connections, stack = BackendConnections(backend, keys), AsyncExitStack()
    build_features(app, FeatureContext(state, connections, LoopLag(), stack), FEATURES)
    redis = backend.client()
    lane_batchers = [each for own in lanes for each in own.values()]
    all_batchers = (*batchers, *lane_batchers, *connections.batchers)
    return Gateway(app, Client(app), state, redis, keys, reading, all_batchers, stack)


Make = Callable[..., Gateway]
#: Runs a test with one partition and with four; the test finds keys with `keys_of`.
partitioned = pytest.mark.parametrize(
    "queue_partitions", [1, 4], ids=["1 partition", "4 partitions"], indirect=True
)


async def gateway_maker(backend: Backend, **defaults: Any) -> AsyncIterator[Make]:
    built: list[Gateway] = []

    def factory(**settings: Any) -> Gateway:
        built.append(make_gateway(backend, **{**defaults, **settings}))
        return built[-1]

    yield factory
    for gateway in built:
        await gateway.close()


def check_problem(answer: Answer, status: int, code: str | None = None) -> dict[str, Any]:
    """Check that the response is a complete problem of this kind; returns it."""
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert set(problem) - {"errors"} == {
        *("type", "title", "status", "code", "detail", "instance", "request_id")
    }
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["type"] == f"urn:sluice:problem:{problem['code']}"
    assert problem["instance"].startswith("/")
    assert problem["request_id"] == answer.header("x-request-id")
    assert "Traceback" not in answer.body.decode()
    if code is not None:
        assert problem["code"] == code, problem
    return problem


async def settle() -> None:
    """Let all tasks run that are ready."""
    for _ in range(20):
        await asyncio.sleep(0)
