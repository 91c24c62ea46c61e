"""Which workflows a gateway knows: the shipped one always, those of workers when it has asked."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from common.contracts.jobs import JobKeys
from common.contracts.workflow import MEMORY_FIRST, WorkflowKeys
from common.errors import StoreUnavailable
from common.workflow import known, memory_first
from common.workflow.known import ASK_AGAIN_S, FRESH_S, KnownWorkflows
from tests.backends import Backend
from tests.common.workflow.kit import FIVE


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def redis(backend: Backend) -> Redis:
    return backend.client()


@pytest.fixture
def key(keys: JobKeys) -> str:
    return WorkflowKeys(keys.tag).definitions


@pytest.fixture
def workflows(redis: Redis, keys: JobKeys, clock: Clock) -> KnownWorkflows:
    return KnownWorkflows(redis, WorkflowKeys(keys.tag), clock=clock)


async def test_the_shipped_one_is_always_known(
    workflows: KnownWorkflows, redis: Redis, key: str
) -> None:
    await redis.hset(key, MEMORY_FIRST, FIVE.to_json())
    assert await workflows.find(MEMORY_FIRST) is memory_first.DEFINITION
    assert workflows.names() == [MEMORY_FIRST]


async def test_what_is_not_known_is_asked_for_soon_again(
    workflows: KnownWorkflows, redis: Redis, key: str, clock: Clock
) -> None:
    assert await workflows.find(FIVE.name) is None
    await redis.hset(key, FIVE.name, FIVE.to_json())
    assert await workflows.find(FIVE.name) is None, "it has just asked"
    clock.now += ASK_AGAIN_S
    assert await workflows.find(FIVE.name) == FIVE
    await redis.delete(key)
    assert await workflows.find(FIVE.name) == FIVE
    clock.now += FRESH_S
    assert await workflows.find(FIVE.name) is None


async def test_declarations_that_are_none(
    workflows: KnownWorkflows, redis: Redis, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MOST_BYTES", 100_000)
    long = FIVE.to_json()[:-1] + b',"x":"' + b"x" * 100_000 + b'"}'
    stored = {"a": b"", "b": b"[]", "c": b"{", "d": FIVE.to_json(), "five_v1": long, b"\xff": b"1"}
    await redis.hset(key, mapping=stored)
    assert await workflows.find(FIVE.name) is None
    assert workflows.names() == [MEMORY_FIRST]


async def test_a_key_that_is_somebody_elses(
    workflows: KnownWorkflows, redis: Redis, key: str
) -> None:
    await redis.set(key, "x")
    assert await workflows.find(FIVE.name) is None
    assert await workflows.find(MEMORY_FIRST) is not None


async def test_redis_is_away(
    workflows: KnownWorkflows, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(workflows, "_ask", away)
    assert await workflows.find(MEMORY_FIRST) is memory_first.DEFINITION
    with pytest.raises(StoreUnavailable):
        await workflows.find("nope")
