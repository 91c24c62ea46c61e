"""A gateway without a network or a lifespan, on whichever Redis the test has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from common.audit import Pace
from common.audit_partitions import auditor_over
from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.images.scripts import IMAGES
from common.partition_lines import Line, Lines
from common.settings import GatewaySettings
from common.workflow.scripts import WORKFLOW
from gateway.bullmq.queues import BullQueues
from gateway.main import create_app
from gateway.partitioned_store import stores_over
from gateway.state import GatewayState
from gateway.tail import Hub
from tests.backends import SYSTEM, Backend, RealServer, require_binary
from tests.gateway.asgi import Answer, Client
from tests.gateway.sse import Block

CHAT = {"task": "chat", "payload": {"text": "hello"}}
#: How long something is tried against a Redis that may only be slow.
PATIENCE_S = 30.0
#: The same where the test knows that it is away.
SHORT_S = 0.3


@contextmanager
def impatient(*carriers: Coalescer) -> Iterator[None]:
    """Meanwhile these give up soon; what must succeed is done before or after."""
    usual = [carrier._patience_s for carrier in carriers]
    for carrier in carriers:
        carrier._patience_s = SHORT_S
        if carrier._giving_up is not None:  # set for a longer time, and of use to nobody now
            carrier._giving_up.cancel()
            carrier._giving_up = None
    try:
        yield
    finally:
        for carrier, patience_s in zip(carriers, usual):
            carrier._patience_s = patience_s


@dataclass
class Gateway:
    """One running gateway, and the Redis behind it seen through other hands."""

    app: FastAPI
    client: Client
    state: GatewayState
    redis: Redis
    keys: JobKeys
    #: The connection that the hub reads with.
    reading: Any
    #: What carries everything that is written: first what goes to each partition, by its number.
    carriers: Sequence[Coalescer]
    closers: list[Callable[[], Any]]

    @property
    def hub(self) -> Hub:
        return self.state.hub

    def keys_of(self, job_id: str) -> JobKeys:
        """The names of the partition that a job belongs to."""
        return self.state.lines.of_job(job_id).keys

    async def create(self, body: object = CHAT, **headers: str) -> str:
        """A job, by HTTP."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.client.post(body, named)
        assert answer.status == 202, answer
        job_id: str = answer.json()["job_id"]
        return job_id

    async def emit(
        self, job_id: str, type: str, data: bytes | object = None, *, hint: bool = True
    ) -> str:
        """An event as any contract worker writes it; ours also publish a hint."""
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
        await self.redis.hset(keys.job(job_id), mapping=fields)  # type: ignore[misc]
        return await self.emit(job_id, status, {"ms": 1}, hint=hint)

    async def watch_all(self, job_id: str, last_event_id: str | None = None) -> list[Block]:
        """Everything a tail gets up to the end, without the hello."""
        headers = {} if last_event_id is None else {"last-event-id": last_event_id}
        stream = await self.client.watch(job_id, headers)
        assert stream.status == 200
        hello, *events = await stream.rest()
        assert hello.event == "hello"
        return events

    async def snapshot(self) -> dict[bytes, Any]:
        """Every key with its value, to prove that nothing was written but who came and why."""
        found: dict[bytes, Any] = {}
        for key in await self.redis.keys("*"):
            if key not in (b"access:trail", b"access:used"):
                found[key] = await self.redis.dump(key)
        return found

    async def close(self) -> None:
        await self.client.close()
        await self.hub.stop()
        for closer in self.closers:
            await closer()


def make_gateway(
    backend: Backend,
    *,
    others: Mapping[int, Backend] | None = None,
    **settings: Any,
) -> Gateway:
    """What `gateway.main.running` wires together, over a test's backend.

    `others`: backends that have a partition each; the test's own has the rest.
    """
    chosen = GatewaySettings(**settings)
    keys, partitions = chosen.keys, chosen.partitions
    places = [(others or {}).get(number, backend) for number in range(partitions.count)]
    clients = {place: place.client() for place in dict.fromkeys(places)}
    writing, reads = ({place: place.wire() for place in clients} for _ in range(2))
    lines = Lines(
        partitions,
        tuple(
            Line(number, keys, clients[place], chosen.lane_names)
            for number, (keys, place) in enumerate(zip(partitions.keys, places))
        ),
    )
    coalescers = [
        Coalescer(writing[place], line.keys, PATIENCE_S) for place, line in zip(places, lines)
    ]
    lanes = [
        {
            lane: Coalescer(writing[place], line.keys.in_lane(lane), PATIENCE_S)
            for lane in chosen.lane_names
        }
        for place, line in zip(places, lines)
    ]
    store, queue = stores_over(lines, coalescers, lanes)
    reading = reads[backend]

    def hinted(message: bytes) -> None:
        state.hinted(message)

    listening = backend.wire(on_message=hinted)
    patience = chosen.sse_heartbeat_s, chosen.sse_max_life_s
    hub = Hub([reads[place] for place in places], listening, partitions, *patience)
    app = create_app(chosen)
    auditor = auditor_over(lines, chosen.worker_group, Pace(pause_s=0.0, again_s=0.02))
    workflows = Coalescer(backend.wire(), keys, PATIENCE_S, WORKFLOW)
    images = Coalescer(backend.wire(), keys, PATIENCE_S, IMAGES)
    queues = BullQueues(chosen, backend.wire(), backend.wire(), hub.numbers)
    state = GatewayState.over(chosen, store, hub, queue, auditor, lines, workflows, images, queues)
    app.state.gateway = state
    hub.start()
    state.stages.start()
    queues.hub.start()
    redis = backend.client()
    beside = [each for own in lanes for each in own.values()]
    carriers = (*coalescers, *beside, workflows, images)
    closers = [state.close, *(carrier.close for carrier in carriers)]
    return Gateway(app, Client(app), state, redis, keys, reading, carriers, closers)


Make = Callable[..., Gateway]


async def _making(backend: Backend) -> AsyncIterator[Make]:
    made: list[Gateway] = []

    def factory(**settings: Any) -> Gateway:
        made.append(make_gateway(backend, **settings))
        return made[-1]

    yield factory
    for gateway in made:
        await gateway.close()


@pytest.fixture
async def make(backend: Backend) -> AsyncIterator[Make]:
    """Makes gateways with settings of their own, on every kind of Redis."""
    async for factory in _making(backend):
        yield factory


@pytest.fixture
async def real_make(real_backend: Backend) -> AsyncIterator[Make]:
    """The same, on real servers only: fakeredis is not Redis in every corner."""
    async for factory in _making(real_backend):
        yield factory


@pytest.fixture
async def fake_make(fake_backend: Backend) -> AsyncIterator[Make]:
    """The same, on fakeredis only: for what does not depend on the server."""
    async for factory in _making(fake_backend):
        yield factory


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    """A gateway with the default settings, on every kind of Redis."""
    return make()


@pytest.fixture
async def fake_gateway(fake_make: Make) -> Gateway:
    """A gateway with the default settings on fakeredis."""
    return fake_make()


def check_problem(answer: Answer, status: int, code: str | None = None) -> dict[str, Any]:
    """The answer is a whole problem+json of this kind; returns it."""
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
    """Let everything run that is ready to run."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def leaving() -> Iterator[RealServer]:
    """A server that a test may end."""
    server = RealServer(require_binary(SYSTEM))
    yield server
    server.close()
